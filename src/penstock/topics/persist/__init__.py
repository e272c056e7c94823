"""What a node keeps on disk beside its log: snapshots, segments of cold records, backups."""
