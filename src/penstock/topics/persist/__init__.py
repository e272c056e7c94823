"""What a node keeps on disk besides its log: snapshots, segments of cold records, backups."""
