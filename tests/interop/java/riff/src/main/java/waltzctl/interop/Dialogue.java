package waltzctl.interop;

import com.wepay.riff.network.ClientSSL;
import com.wepay.riff.network.SSLConfig;
import io.netty.handler.ssl.SslContext;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;

/**
 * Speaks with a node through the release's networking library and prints every answer, one a line.  Arguments: host, data port,
 * admin port, cluster key, number of partitions; then, for TLS with stores, key store, trust store, their type and password.
 */
public final class Dialogue {
    private static final long NOBODY = -1;
    private static final int MANY = 200;

    private final String host;
    private final int dataPort;
    private final int adminPort;
    private final UUID key;
    private final int partitions;
    private final SslContext tls;
    private long sequence;

    private Dialogue(String[] a) throws Exception {
        host = a[0];
        dataPort = Integer.parseInt(a[1]);
        adminPort = Integer.parseInt(a[2]);
        key = UUID.fromString(a[3]);
        partitions = Integer.parseInt(a[4]);
        tls = a.length == 5 ? ClientSSL.createInsecureContext() : ClientSSL.createContext(stores(a));
    }

    private static SSLConfig stores(String[] a) {
        Map<Object, Object> config = new HashMap<>();
        config.put(SSLConfig.KEY_STORE_LOCATION, a[5]);
        config.put(SSLConfig.KEY_STORE_TYPE, a[7]);
        config.put(SSLConfig.KEY_STORE_PASSWORD, a[8]);
        config.put(SSLConfig.TRUST_STORE_LOCATION, a[6]);
        config.put(SSLConfig.TRUST_STORE_TYPE, a[7]);
        config.put(SSLConfig.TRUST_STORE_PASSWORD, a[8]);
        return new SSLConfig("", config);
    }

    public static void main(String[] arguments) throws Exception {
        Dialogue dialogue = new Dialogue(arguments);
        dialogue.administer();
        dialogue.store();
        dialogue.switchApart();
        dialogue.beRefused();
        say("end", "");
        System.exit(0);  // the library's threads are no daemons
    }

    private static void say(String what, Object answer) {
        System.out.println(what + ": " + answer);
    }

    private Peer admin(FieldCodec... codecs) throws Exception {
        return new Peer(host, adminPort, tls, "Waltz Storage Admin Client", codecs).greet();
    }

    private static FieldCodec admin0() {
        return new FieldCodec('A', 0, Layout.ADMIN_PREFIX, Layout.ADMIN_0);
    }

    private void administer() throws Exception {
        try (Peer peer = admin(admin0())) {
            say("admin open", peer.ask(new FieldMessage(3, NOBODY, key, partitions)));
            say("admin open, other key", peer.ask(new FieldMessage(3, NOBODY, new UUID(1, 2), partitions)));
            say("nothing assigned", peer.ask(new FieldMessage(13, sequence++)));
            say("assign", peer.ask(new FieldMessage(6, sequence++, List.of(0, 1), true, false)));
            say("switch off", peer.ask(new FieldMessage(4, sequence++, List.of(1), false)));
            say("assigned", peer.ask(new FieldMessage(13, sequence++)));
            say("session", peer.ask(new FieldMessage(9, sequence++, 0)));
            say("session of another", peer.ask(new FieldMessage(9, sequence++, 3)));
            FieldMessage metrics = peer.ask(new FieldMessage(11, sequence++));
            say("metrics", ((String) metrics.fields.get(1)).contains("\"waltz-storage.partition-0.append\""));
        }
    }

    private void store() throws Exception {
        FieldCodec codec = new FieldCodec('S', 0, Layout.DATA_PREFIX, Layout.DATA);
        try (Peer peer = new Peer(host, dataPort, tls, "Waltz Storage Client", codec).greet()) {
            sequence = 0;
            say("open", peer.ask(new FieldMessage(1, NOBODY, NOBODY, -1, key, partitions)));
            say("last session", peer.ask(data(2, 0, false)));
            say("mark", peer.ask(data(4, 0, -1L, false)));
            say("append", peer.ask(data(6, 0, List.of(Entry.made(0, 0), Entry.made(1, 3), Entry.made(2, 300)), false)));
            say("append nothing", peer.ask(data(6, 0, List.of(), false)));
            say("append a gap", peer.ask(data(6, 0, List.of(Entry.made(9, 3)), false)));
            say("append wrongly summed", peer.ask(data(6, 0, List.of(Entry.made(3, 3).with(new byte[3], 7)), false)));
            say("record", peer.ask(data(11, 0, 2L)));
            say("no record", peer.ask(data(11, 0, 3L)));
            say("header", peer.ask(data(9, 0, 1L)));
            say("no header", peer.ask(data(9, 0, -1L)));
            say("headers", peer.ask(data(15, 0, 0L, 2)));
            say("records", peer.ask(data(17, 0, 1L, 10)));
            say("last", peer.ask(data(13, 0, false)));
            say("switched off", peer.ask(data(13, 1, false)));
            say("not assigned", peer.ask(data(13, 3, false)));
            say("truncate", peer.ask(data(5, 0, 0L, false)));
            appendMany(peer);
            appendMuch(peer);
            peer.keepAlive();
            say("after a keep-alive", peer.ask(data(13, 0, false)));
        }
    }

    private FieldMessage data(int type, int partition, Object... more) {
        List<Object> fields = new ArrayList<>(List.of(42L, sequence++, partition));
        fields.addAll(List.of(more));
        return new FieldMessage(type, fields);
    }

    /** Requests that nobody waits for in between: the answers of one partition come in the order of its requests. */
    private void appendMany(Peer peer) throws Exception {
        long first = sequence;
        for (int number = 1; number <= MANY; number++) {
            peer.send(data(6, 0, List.of(Entry.made(number, number)), false));
        }
        for (int number = 0; number < MANY; number++) {
            FieldMessage answer = peer.answer();
            if (answer.type() != 7 || !answer.fields.get(1).equals(first + number)) {
                say("out of turn", answer);
            }
        }
        say("appended many", peer.ask(data(13, 0, false)).fields.get(3));
    }

    /** Frames that do not fit any buffer on the way. */
    private void appendMuch(Peer peer) throws Exception {
        List<Entry> records = new ArrayList<>();
        for (int number = 0; number < 2000; number++) {
            records.add(Entry.made(MANY + 1 + number, 1000));
        }
        say("append much", peer.ask(data(6, 0, records, false)).type());
        List<?> found = (List<?>) peer.ask(data(17, 0, MANY + 1L, 5000)).fields.get(3);
        say("read much", found.toString().equals(records.toString()) ? found.size() : found);
    }

    /** Version 1 of the admin protocol, which the node prefers when it is offered. */
    private void switchApart() throws Exception {
        FieldCodec codec = new FieldCodec('A', 1, Layout.ADMIN_PREFIX, Layout.ADMIN_1);
        try (Peer peer = admin(admin0(), codec)) {
            sequence = 100;
            say("assigned, version 1", peer.ask(new FieldMessage(13, sequence++)));
            say("reads on", peer.ask(new FieldMessage(4, sequence++, 1, true)));
            say("reads are on", peer.ask(new FieldMessage(13, sequence++)));
            say("writes on", peer.ask(new FieldMessage(5, sequence++, 1, true)));
            say("both are on", peer.ask(new FieldMessage(13, sequence++)));
            say("records, version 1", peer.ask(new FieldMessage(7, sequence++, 0, 0L, 2)));
        }
    }

    /** The node ends what cannot be meant: a version that it does not speak, the other port's messages. */
    private void beRefused() throws Exception {
        FieldCodec strange = new FieldCodec('S', 7, Layout.DATA_PREFIX, Layout.DATA);
        Peer stranger = new Peer(host, dataPort, tls, "Waltz Storage Client", strange);
        stranger.open();
        stranger.awaitEnd();
        say("version 7", "ended");
        FieldCodec data = new FieldCodec('S', 0, Layout.DATA_PREFIX, Layout.DATA);
        Peer lost = admin(data);
        lost.send(data(13, 0, false));
        lost.awaitEnd();
        say("the other port", "ended");
    }
}
