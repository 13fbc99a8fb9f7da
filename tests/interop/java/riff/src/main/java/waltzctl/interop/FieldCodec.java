package waltzctl.interop;

import com.wepay.riff.network.Message;
import com.wepay.riff.network.MessageAttributeReader;
import com.wepay.riff.network.MessageAttributeWriter;
import com.wepay.riff.network.MessageCodec;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;

/** Reads and writes messages by their {@link Layout}; how a field looks in bytes is the library's affair. */
final class FieldCodec implements MessageCodec {
    private final char magic;
    private final int version;
    private final String prefix;
    private final Map<Integer, String> layouts;

    FieldCodec(char magic, int version, String prefix, Map<Integer, String> layouts) {
        this.magic = magic;
        this.version = version;
        this.prefix = prefix;
        this.layouts = layouts;
    }

    @Override
    public short version() {
        return (short) version;
    }

    @Override
    public byte magicByte() {
        return (byte) magic;
    }

    @Override
    public Message decode(MessageAttributeReader reader) {
        int type = reader.readByte();
        List<Object> fields = new ArrayList<>();
        read(reader, prefix + layout(type), fields);
        return new FieldMessage(type, fields);
    }

    @Override
    public void encode(Message message, MessageAttributeWriter writer) {
        List<Object> fields = ((FieldMessage) message).fields;
        String layout = prefix + layout(message.type());
        writer.writeByte(message.type());
        int written = write(writer, layout, fields);
        if (written != fields.size()) {
            throw new IllegalArgumentException(message + " has not the layout " + layout);
        }
    }

    private String layout(int type) {
        String layout = layouts.get(type);
        if (layout == null) {
            throw new IllegalArgumentException("no message type " + type + " in version " + version);
        }
        return layout;
    }

    private static void read(MessageAttributeReader reader, String layout, List<Object> into) {
        for (int place = 0; place < layout.length(); place++) {
            char code = layout.charAt(place);
            if (code == '?') {
                boolean present = reader.readBoolean();
                place++;
                into.add(present ? readOne(reader, layout.charAt(place)) : "absent");
            } else if (code == '(') {
                int end = layout.indexOf(')', place);
                String element = layout.substring(place + 1, end);
                List<Object> list = new ArrayList<>();
                for (int count = reader.readInt(); count > 0; count--) {
                    read(reader, element, list);
                }
                into.add(list);
                place = end;
            } else {
                into.add(readOne(reader, code));
            }
        }
    }

    private static Object readOne(MessageAttributeReader reader, char code) {
        switch (code) {
            case 'q':
                return reader.readLong();
            case 'i':
                return reader.readInt();
            case 'b':
                return reader.readBoolean();
            case 's':
                return reader.readString();
            case 'I':
                return reader.readIntList();
            case 'u':
                return new UUID(reader.readLong(), reader.readLong());
            case 'h':
            case 'r':
                Entry entry = new Entry(reader.readLong(), reader.readLong(), reader.readLong(), reader.readInt());
                return code == 'h' ? entry : entry.with(reader.readByteArray(), reader.readInt());
            case 'f':
                List<Object> failure = new ArrayList<>();
                failure.add(reader.readString());
                for (int count = reader.readInt(); count > 0; count--) {
                    failure.add(reader.readString() + "." + reader.readString() + "(" + reader.readString() + ":"
                        + reader.readInt() + ")");
                }
                return failure;
            default:
                throw new IllegalArgumentException("no such field: " + code);
        }
    }

    /** Returns how many of the fields were written. */
    private static int write(MessageAttributeWriter writer, String layout, List<Object> fields) {
        int next = 0;
        for (int place = 0; place < layout.length(); place++, next++) {
            if (layout.charAt(place) == '(') {
                int end = layout.indexOf(')', place);
                List<?> list = (List<?>) fields.get(next);
                writer.writeInt(list.size());
                for (Object element : list) {
                    write(writer, layout.substring(place + 1, end), List.of(element));
                }
                place = end;
            } else {
                writeOne(writer, layout.charAt(place), fields.get(next));
            }
        }
        return next;
    }

    @SuppressWarnings("unchecked")
    private static void writeOne(MessageAttributeWriter writer, char code, Object value) {
        switch (code) {
            case 'q':
                writer.writeLong((Long) value);
                break;
            case 'i':
                writer.writeInt((Integer) value);
                break;
            case 'b':
                writer.writeBoolean((Boolean) value);
                break;
            case 'I':
                writer.writeIntList((List<Integer>) value);
                break;
            case 'u':
                writer.writeLong(((UUID) value).getMostSignificantBits());
                writer.writeLong(((UUID) value).getLeastSignificantBits());
                break;
            case 'r':
                Entry entry = (Entry) value;
                writer.writeLong(entry.transactionId);
                writer.writeLong(entry.requestHigh);
                writer.writeLong(entry.requestLow);
                writer.writeInt(entry.header);
                writer.writeByteArray(entry.data);
                writer.writeInt(entry.checksum);
                break;
            default:
                throw new IllegalArgumentException("no field that a client sends: " + code);
        }
    }
}
