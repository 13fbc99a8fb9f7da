import com.wepay.riff.network.ClientSSL;
import com.wepay.waltz.common.message.Record;
import com.wepay.waltz.common.message.RecordHeader;
import com.wepay.waltz.common.message.ReqId;
import com.wepay.waltz.common.util.Utils;
import com.wepay.waltz.storage.client.StorageAdminClient;
import com.wepay.waltz.storage.client.StorageClient;
import com.wepay.waltz.storage.common.SessionInfo;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.ExecutionException;

/**
 * The released storage clients, told by lines on stdin what to ask; each line is answered by one line on stdout, "ok ..." or
 * "error MESSAGE".  Arguments: host, data port, admin port, cluster key, number of partitions.
 */
public final class ReleasedClient {
    private static StorageClient online;
    private static StorageClient offline;
    private static StorageAdminClient admin;

    public static void main(String[] a) throws Exception {
        UUID key = UUID.fromString(a[3]);
        int partitions = Integer.parseInt(a[4]);
        try {
            online = new StorageClient(a[0], Integer.parseInt(a[1]), ClientSSL.createInsecureContext(), key, partitions);
            online.open();
            online.awaitOpen();
            offline = new StorageClient(a[0], Integer.parseInt(a[1]), ClientSSL.createInsecureContext(), key, partitions, true);
            offline.open();
            offline.awaitOpen();
            admin = new StorageAdminClient(a[0], Integer.parseInt(a[2]), ClientSSL.createInsecureContext(), key, partitions);
            admin.open();
            admin.awaitOpen();
            say("ok");
        } catch (Throwable e) {
            say("error " + messageOf(e));
            System.exit(1);
        }
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            try {
                say(("ok " + answer(line.trim().split(" "))).trim());
            } catch (Throwable e) {
                say("error " + messageOf(e));
            }
        }
        System.exit(0);
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static String messageOf(Throwable e) {
        Throwable cause = e instanceof ExecutionException && e.getCause() != null ? e.getCause() : e;
        return String.valueOf(cause.getMessage()).replace('\n', ' ');
    }

    private static String answer(String[] w) throws Exception {
        String what = w[0];
        StorageClient client = online;
        if (what.startsWith("offline-")) {
            what = what.substring(8);
            client = offline;
        }
        switch (what) {
            case "session":
                return shown((SessionInfo) client.lastSessionInfo(number(w[1]), place(w[2])).get());
            case "lwm":
                client.setLowWaterMark(number(w[1]), place(w[2]), number(w[3])).get();
                return "";
            case "truncate":
                return String.valueOf(client.truncate(number(w[1]), place(w[2]), number(w[3])).get());
            case "max":
                return String.valueOf(client.getMaxTransactionId(number(w[1]), place(w[2])).get());
            case "append":
                client.appendRecords(number(w[1]), place(w[2]), batch(place(w[2]), number(w[3]), place(w[4]), place(w[5]))).get();
                return "";
            case "header":
                return shown((RecordHeader) client.getRecordHeader(number(w[1]), place(w[2]), number(w[3])).get());
            case "record":
                return shown((Record) client.getRecord(number(w[1]), place(w[2]), number(w[3])).get());
            case "headers":
                return headers(client.getRecordHeaderList(number(w[1]), place(w[2]), number(w[3]), place(w[4])).get());
            case "records":
                return records(client.getRecordList(number(w[1]), place(w[2]), number(w[3]), place(w[4])).get());
            case "available":
                admin.setPartitionAvailable(places(w[1]), Boolean.parseBoolean(w[2])).get();
                return "";
            case "assign":
                admin.setPartitionAssignment(places(w[1]), true, false).get();
                return "";
            case "unassign":
                admin.setPartitionAssignment(places(w[1]), false, w.length > 2 && w[2].equals("delete")).get();
                return "";
            case "admin-session":
                return shown((SessionInfo) admin.lastSessionInfo(place(w[1])).get());
            case "admin-records":
                return records(admin.getRecordList(place(w[1]), number(w[2]), place(w[3])).get());
            case "status":
                return new TreeMap<>((Map<?, ?>) admin.getAssignedPartitionStatus().get()).toString();
            case "metrics":
                return ((String) admin.getMetrics().get()).replace('\n', ' ');
            case "flood":
                return flood(number(w[1]), place(w[2]), place(w[3]), place(w[4]));
            default:
                throw new IllegalArgumentException("no such question: " + what);
        }
    }

    /** Appends batch after batch to a partition from an id on, saying the last id of each that was acknowledged, until it fails. */
    private static String flood(long session, int partition, int first, int size) throws Exception {
        Random random = new Random(first);
        long next = first;
        try {
            for (;;) {
                int count = 1 + random.nextInt(size);
                online.appendRecords(session, partition, batch(partition, next, count, 100)).get();
                next += count;
                say("acknowledged " + (next - 1));
            }
        } catch (Throwable e) {
            return "ended " + (next - 1);
        }
    }

    /** Records whose every field follows from partition and id, so that the other side can tell what they must be. */
    private static ArrayList<Record> batch(int partition, long first, int count, int size) {
        ArrayList<Record> list = new ArrayList<>();
        for (long id = first; id < first + count; id++) {
            byte[] data = new byte[size];
            for (int i = 0; i < size; i++) {
                data[i] = (byte) (id * 31 + partition * 7 + i);
            }
            list.add(new Record(id, new ReqId(11, 22, partition, (int) id), (int) (id * 3), data, Utils.checksum(data)));
        }
        return list;
    }

    private static long number(String text) {
        return Long.parseLong(text);
    }

    private static int place(String text) {
        return Integer.parseInt(text);
    }

    private static List<Integer> places(String text) {
        List<Integer> list = new ArrayList<>();
        for (String one : text.split(",")) {
            list.add(Integer.parseInt(one));
        }
        return list;
    }

    private static String shown(SessionInfo info) {
        return info.sessionId + " " + info.lowWaterMark + " " + info.localLowWaterMark;
    }

    private static String shown(RecordHeader header) {
        return header == null ? "none" : header.transactionId + ":" + shown(header.reqId) + ":" + header.header;
    }

    private static String shown(ReqId id) {
        return id.clientId() + ":" + id.generation() + ":" + id.partitionId() + ":" + id.seqNum();
    }

    private static String shown(Record record) {
        if (record == null) {
            return "none";
        }
        StringBuilder data = new StringBuilder();
        for (byte one : record.data) {
            data.append(String.format("%02x", one));
        }
        return record.transactionId + ":" + shown(record.reqId) + ":" + record.header + ":" + data + ":" + record.checksum;
    }

    private static String records(Object list) {
        StringBuilder text = new StringBuilder();
        for (Object one : (List<?>) list) {
            text.append(shown((Record) one)).append(' ');
        }
        return text.toString().trim();
    }

    private static String headers(Object list) {
        StringBuilder text = new StringBuilder();
        for (Object one : (List<?>) list) {
            text.append(shown((RecordHeader) one)).append(' ');
        }
        return text.toString().trim();
    }
}
