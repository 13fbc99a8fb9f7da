package waltzctl.interop;

import java.util.zip.CRC32;

/** A transaction: a record, or where there is no data only its header. */
final class Entry {
    final long transactionId;
    final long requestHigh;
    final long requestLow;
    final int header;
    final byte[] data;
    final int checksum;

    Entry(long transactionId, long requestHigh, long requestLow, int header) {
        this(transactionId, requestHigh, requestLow, header, null, 0);
    }

    private Entry(long transactionId, long requestHigh, long requestLow, int header, byte[] data, int checksum) {
        this.transactionId = transactionId;
        this.requestHigh = requestHigh;
        this.requestLow = requestLow;
        this.header = header;
        this.data = data;
        this.checksum = checksum;
    }

    Entry with(byte[] bytes, int crc) {
        return new Entry(transactionId, requestHigh, requestLow, header, bytes, crc);
    }

    /** A record whose every byte follows from its id and its length. */
    static Entry made(long transactionId, int length) {
        byte[] data = new byte[length];
        for (int place = 0; place < length; place++) {
            data[place] = (byte) (transactionId * 31 + place);
        }
        return new Entry(transactionId, (7L << 32) | 1, transactionId, -(int) transactionId).with(data, crc(data));
    }

    private static int crc(byte[] data) {
        CRC32 crc = new CRC32();
        crc.update(data);
        return (int) crc.getValue();
    }

    @Override
    public String toString() {
        String text = transactionId + "/" + Long.toHexString(requestHigh) + "/" + Long.toHexString(requestLow) + "/" + header;
        return data == null ? text : text + "/" + data.length + (crc(data) == checksum ? "/sound" : "/unsound");
    }
}
