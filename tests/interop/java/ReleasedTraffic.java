import com.wepay.waltz.client.PartitionLocalLock;
import com.wepay.waltz.client.Serializer;
import com.wepay.waltz.client.Transaction;
import com.wepay.waltz.client.TransactionBuilder;
import com.wepay.waltz.client.TransactionContext;
import com.wepay.waltz.client.WaltzClient;
import com.wepay.waltz.client.WaltzClientCallbacks;
import com.wepay.waltz.client.WaltzClientConfig;
import java.io.FileInputStream;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.ThreadLocalRandom;
import org.yaml.snakeyaml.Yaml;

/**
 * The released Waltz client of a whole cluster.  Arguments: "write" or "read", the tools' YAML file, the number of partitions, and
 * how many locks there are.
 *
 * write: transactions in all partitions, each under one of the partition's locks if there are any, a few under way in each
 * partition, until stdin ends; each has a text of its own, and "done PARTITION TEXT" is said when the client reports it as
 * committed.  read: everything from the first transaction to the
 * high-water marks at the start, "read PARTITION ID TEXT" each, in the order in which it comes.
 */
public final class ReleasedTraffic {
    private static final int IN_FLIGHT = 4;
    private static final int SIZE = 400;
    private static final int PAUSE_MILLISECONDS = 3;
    private static final Serializer<String> TEXT = new Serializer<String>() {
        @Override
        public byte[] serialize(String text) {
            return text.getBytes(StandardCharsets.US_ASCII);
        }

        @Override
        public String deserialize(byte[] bytes) {
            return new String(bytes, StandardCharsets.US_ASCII);
        }
    };

    private static int locks;
    private static final Map<Integer, Long> marks = new ConcurrentHashMap<>();

    public static void main(String[] arguments) throws Exception {
        int partitions = Integer.parseInt(arguments[2]);
        locks = Integer.parseInt(arguments[3]);
        boolean reading = arguments[0].equals("read");
        Map<Integer, Long> ends = ends(arguments[1], partitions);
        for (int partition = 0; partition < partitions; partition++) {
            marks.put(partition, reading ? -1L : ends.get(partition));
        }
        WaltzClient client = new WaltzClient(new Callbacks(reading), config(arguments[1], true));
        say("ready");
        if (reading) {
            while (!marks.entrySet().stream().allMatch(one -> one.getValue() >= ends.get(one.getKey()))) {
                Thread.sleep(20);
            }
            say("end");
        } else {
            for (int partition = 0; partition < partitions; partition++) {
                write(client, partition);
            }
            while (System.in.read() >= 0) {
                continue;
            }
        }
        System.exit(0);
    }

    private static WaltzClientConfig config(String path, boolean mount) throws Exception {
        try (InputStream input = new FileInputStream(path)) {
            Map<Object, Object> values = new Yaml().load(input);
            values.put(WaltzClientConfig.AUTO_MOUNT, mount);
            return new WaltzClientConfig(values);
        }
    }

    /** The high-water marks, asked for by a client that mounts nothing. */
    private static Map<Integer, Long> ends(String path, int partitions) throws Exception {
        WaltzClient client = new WaltzClient(new Callbacks(false), config(path, false));
        try {
            Map<Integer, Long> found = new ConcurrentHashMap<>();
            for (int partition = 0; partition < partitions; partition++) {
                found.put(partition, client.getHighWaterMark(partition));
            }
            return found;
        } finally {
            client.close();
        }
    }

    private static void write(WaltzClient client, int partition) {
        Thread thread = new Thread(() -> {
            Semaphore room = new Semaphore(IN_FLIGHT);
            String prefix = client.clientId() + "." + partition + ".";
            for (long number = 0;; number++) {
                room.acquireUninterruptibly();
                client.submit(new OneTransaction(partition, prefix + number, room));
                try {
                    Thread.sleep(PAUSE_MILLISECONDS); // enough to see that it goes on, and all of it is read back
                } catch (InterruptedException e) {
                    return;
                }
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static final class OneTransaction extends TransactionContext {
        private final int partition;
        private final String text;
        private final Semaphore room;

        OneTransaction(int partition, String text, Semaphore room) {
            this.partition = partition;
            this.text = text;
            this.room = room;
        }

        @Override
        public int partitionId(int numPartitions) {
            return partition;
        }

        @Override
        public boolean execute(TransactionBuilder builder) {
            StringBuilder padded = new StringBuilder(text).append(' ');
            while (padded.length() < SIZE) {
                padded.append('x');
            }
            builder.setTransactionData(padded.toString(), TEXT);
            if (locks > 0) {
                long lock = ThreadLocalRandom.current().nextInt(locks);
                builder.setWriteLocks(Collections.singletonList(new PartitionLocalLock("smoke", lock)));
            }
            return true;
        }

        @Override
        public void onCompletion(boolean committed) {
            if (committed) {
                say("done " + partition + " " + text);
            }
            room.release();
        }
    }

    private static final class Callbacks implements WaltzClientCallbacks {
        private final boolean reading;

        Callbacks(boolean reading) {
            this.reading = reading;
        }

        @Override
        public long getClientHighWaterMark(int partition) {
            return marks.getOrDefault(partition, -1L);
        }

        @Override
        public void applyTransaction(Transaction transaction) {
            int partition = transaction.reqId.partitionId();
            if (reading) {
                String text = transaction.getTransactionData(TEXT).split(" ")[0];
                say("read " + partition + " " + transaction.transactionId + " " + text);
            }
            marks.put(partition, transaction.transactionId);
        }

        @Override
        public void uncaughtException(int partition, long transaction, Throwable error) {
            say("error " + partition + " " + transaction + " " + String.valueOf(error.getMessage()).replace('\n', ' '));
        }
    }
}
