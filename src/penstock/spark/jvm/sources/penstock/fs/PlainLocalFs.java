package penstock.fs;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FsConstants;

/** The same for Hadoop's FileContext, which checkpoints use. */
public class PlainLocalFs extends DelegateToFileSystem {
  public PlainLocalFs(URI uri, Configuration configuration) throws IOException, URISyntaxException {
    super(FsConstants.LOCAL_FS_URI, new PlainRawFileSystem(), configuration, "file", false);
  }

  @Override
  public int getUriDefaultPort() {
    return -1;
  }

  @Override
  public boolean isValidName(String source) {
    return true;
  }
}
