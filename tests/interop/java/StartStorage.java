import com.wepay.waltz.storage.server.internal.StorageManager;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.Arrays;
import java.util.UUID;

/**
 * Opens storage directories as a released node does when it starts, one after another, and says of each on a line of its own
 * "starts" or "refuses" and why.  Cluster key and number of partitions are those of the control file.  Arguments: directories.
 */
public final class StartStorage {
    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        for (String directory : arguments) {
            answers.println(open(directory).replace('\n', ' '));
            answers.flush();
        }
        System.exit(0); // the threads of partitions that were opened before one that failed
    }

    private static String open(String directory) throws Exception {
        Path control = Paths.get(directory, "waltz-storage.ctl");
        ByteBuffer header = ByteBuffer.wrap(Arrays.copyOf(Files.readAllBytes(control), 128));
        UUID key = new UUID(header.getLong(12), header.getLong(20));
        try {
            new StorageManager(directory, 1_000_000_000L, header.getInt(28), key, 5).close();
            return "starts";
        } catch (Throwable failure) {
            return "refuses " + failure;
        }
    }
}
