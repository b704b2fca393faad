import io.apicurio.registry.utils.converter.avro.AvroData;
import java.io.*; import java.nio.file.*; import java.util.*;
import org.apache.avro.file.*; import org.apache.avro.generic.*;
import org.apache.kafka.connect.json.JsonConverter; import org.apache.kafka.connect.data.*;
public class Gen {
  static Object unwrap(Object v) throws Exception {
    if (v != null && v.getClass().getSimpleName().equals("NonRecordContainer")) return v.getClass().getMethod("getValue").invoke(v);
    return v;
  }
  static void write(String name, String codec, Schema schema, List<Object> values) throws Exception {
    AvroData data = new AvroData(100);
    try (DataFileWriter<Object> w = new DataFileWriter<>(new GenericDatumWriter<>())) {
      w.setCodec(CodecFactory.fromString(codec));
      w.setSyncInterval(Integer.getInteger("sync", 64000));
      w.create(data.fromConnectSchema(schema), new File(name));
      for (Object v : values) w.append(unwrap(data.fromConnectData(schema, v)));
    }
  }
  public static void main(String[] a) throws Exception {
    JsonConverter c = new JsonConverter(); c.configure(Map.of("schemas.enable", "true"), false);
    List<String> lines = Files.readAllLines(Path.of(a[0]));
    List<Object> values = new ArrayList<>(); Schema schema = null;
    for (String l : lines) { SchemaAndValue v = c.toConnectData("t", l.getBytes("UTF-8")); schema = v.schema(); values.add(v.value()); }
    for (String codec : a[2].split(",")) write(a[1].replace("CODEC", codec), codec, schema, values);
    StringBuilder b = new StringBuilder();
    for (Object v : values) b.append(new String(c.fromConnectData("t", schema, v), "UTF-8")).append("\n");
    Files.write(Path.of("expected.jsonl"), b.toString().getBytes("UTF-8"));
    if (a.length > 3) {
      Schema header = SchemaBuilder.struct().field("key", Schema.STRING_SCHEMA).field("value", Schema.STRING_SCHEMA).build();
      Schema headers = SchemaBuilder.array(header).build();
      List<Object> all = new ArrayList<>(), keys = new ArrayList<>(), raw = new ArrayList<>();
      for (int i = 0; i < values.size(); i++) {
        List<Object> one = new ArrayList<>();
        for (int j = 0; j < i + 1; j++) one.add(new Struct(header).put("key", "h").put("value", "é" + i + j));
        all.add(one);
        keys.add("key " + i);
        raw.add(i == 1 ? null : java.nio.ByteBuffer.wrap(new byte[] {0, 10, (byte) i, (byte) 255}));
      }
      write(a[3] + ".headers.avro", "null", headers, all);
      write(a[3] + ".keys.avro", "deflate", Schema.OPTIONAL_STRING_SCHEMA, keys);
      write(a[3] + ".bytes.avro", "snappy", Schema.OPTIONAL_BYTES_SCHEMA, raw);
    }
  }
}
