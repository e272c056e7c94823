package penstock.fs;

import org.apache.hadoop.fs.LocalFileSystem;

/**
 * What Spark gets for file: paths. Hadoop casts to LocalFileSystem, so it is one; checksum files are
 * neither written nor looked for.
 */
public class PlainLocalFileSystem extends LocalFileSystem {
  public PlainLocalFileSystem() {
    super(new PlainRawFileSystem());
    setWriteChecksum(false);
    setVerifyChecksum(false);
  }
}
