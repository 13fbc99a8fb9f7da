import com.wepay.waltz.storage.server.internal.PartitionInfoSnapshot;
import com.wepay.waltz.storage.server.internal.StorageManager;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.UUID;

/**
 * Opens a storage directory as a released node does, recovery included, and prints what it says of each partition:
 * id, session, low-water mark, local low-water mark, assigned, available, checksum of its records. Argument: the directory.
 */
public final class OpenStorage {
    public static void main(String[] arguments) throws Exception {
        ByteBuffer header = ByteBuffer.wrap(Files.readAllBytes(Paths.get(arguments[0], "waltz-storage.ctl")));
        UUID key = new UUID(header.getLong(12), header.getLong(20));
        StorageManager storage = new StorageManager(arguments[0], 1_000_000_000L, header.getInt(28), key, 5);
        List<PartitionInfoSnapshot> infos = new ArrayList<>(storage.getPartitionInfos());
        infos.sort(Comparator.comparingInt(info -> info.partitionId));
        for (PartitionInfoSnapshot info : infos) {
            System.out.printf(
                "%d %d %d %d %b %b %d%n", info.partitionId, info.sessionId, info.lowWaterMark, info.localLowWaterMark,
                info.isAssigned, info.isAvailable, storage.checksum(info.partitionId)
            );
        }
        storage.close();
        System.exit(0);
    }
}
