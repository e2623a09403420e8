import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.NavigableMap;

import org.apache.kafka.common.protocol.types.Field;
import org.apache.kafka.common.protocol.types.Field.TaggedFieldsSection;
import org.apache.kafka.common.protocol.types.RawTaggedField;
import org.apache.kafka.common.protocol.types.Schema;
import org.apache.kafka.common.protocol.types.Struct;
import org.apache.kafka.common.protocol.types.Type;

/**
 * Reads each argument, custom metadata in hexadecimal, by the schema of Aiven's plugin (SegmentCustomMetadataField), and prints
 * a line: the fields that it knows, those that it does not know in hexadecimal, and all of it written again.
 */
public class TaggedFields {
    public static void main(final String[] arguments) {
        final TaggedFieldsSection section = TaggedFieldsSection.of(
            0, new Field("remote_size", Type.VARLONG),
            1, new Field("object_prefix", Type.COMPACT_STRING),
            2, new Field("object_key", Type.COMPACT_STRING));
        final Schema schema = new Schema(section);
        for (final String argument : arguments) {
            final Struct struct = schema.read(ByteBuffer.wrap(HexFormat.of().parseHex(argument)));
            @SuppressWarnings("unchecked")
            final NavigableMap<Integer, Object> fields = (NavigableMap<Integer, Object>) struct.get(section.name);
            final StringBuilder line = new StringBuilder();
            fields.forEach((tag, value) -> line.append(tag).append('=').append(
                value instanceof RawTaggedField raw ? HexFormat.of().formatHex(raw.data()) : value).append(' '));
            final ByteBuffer again = ByteBuffer.allocate(schema.sizeOf(struct));
            schema.write(again, struct);
            System.out.println(line.append(HexFormat.of().formatHex(again.array())));
        }
    }
}
