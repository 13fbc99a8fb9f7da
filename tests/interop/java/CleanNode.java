import com.wepay.riff.network.ServerSSL;
import com.wepay.waltz.storage.WaltzStorage;
import com.wepay.waltz.storage.WaltzStorageConfig;
import java.io.FileInputStream;
import java.io.InputStream;
import java.util.Map;
import org.yaml.snakeyaml.Yaml;

/**
 * A released storage node that closes its files on SIGTERM.  The released main program does not: for it every stop is a crash.
 * Argument: the node's YAML file.
 */
public final class CleanNode {
    public static void main(String[] arguments) throws Exception {
        Map<Object, Object> values;
        try (InputStream input = new FileInputStream(arguments[0])) {
            values = new Yaml().load(input);
        }
        WaltzStorageConfig config = new WaltzStorageConfig(values);
        int port = (int) config.get(WaltzStorageConfig.STORAGE_PORT);
        int adminPort = (int) config.get(WaltzStorageConfig.STORAGE_ADMIN_PORT);
        WaltzStorage node = new WaltzStorage(port, adminPort, ServerSSL.createContext(config.getSSLConfig()), config);
        Runtime.getRuntime().addShutdownHook(new Thread(node::close));
        node.setJettyServer();
        Thread.sleep(Long.MAX_VALUE);
    }
}
