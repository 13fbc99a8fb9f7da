package waltzctl.interop;

import com.wepay.riff.network.Message;
import java.util.List;

/** A message as its type and its fields, in the order in which they travel. */
final class FieldMessage extends Message {
    private final byte type;
    final List<Object> fields;

    FieldMessage(int type, Object... fields) {
        this(type, List.of(fields));
    }

    FieldMessage(int type, List<Object> fields) {
        this.type = (byte) type;
        this.fields = fields;
    }

    @Override
    public byte type() {
        return type;
    }

    @Override
    public String toString() {
        return type + " " + fields;
    }
}
