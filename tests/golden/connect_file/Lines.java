import java.nio.file.*; import java.util.*;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.file.FileStreamSinkTask;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.storage.StringConverter;
public class Lines {
  public static void main(String[] a) throws Exception {
    StringConverter c = new StringConverter(); c.configure(Map.of(), false);
    long[] offsets = new long[2];
    for (int from = 0, to; from < 5; from = to) {
      to = from == 0 ? 3 : 5;
      FileStreamSinkTask task = new FileStreamSinkTask();
      task.start(Map.of("file", a[1]));
      List<SinkRecord> records = new ArrayList<>();
      List<String> lines = Files.readAllLines(Path.of(a[0]));
      for (String line : lines.subList(from, to)) {
        String topic = line.contains("\"table\":\"u\"") ? "cdc.public.u" : "cdc.public.t";
        SchemaAndValue v = c.toConnectData(topic, line.equals("null") ? null : line.getBytes("UTF-8"));
        records.add(new SinkRecord(topic, 0, null, null, v.schema(), v.value(), offsets[topic.endsWith("u") ? 1 : 0]++));
      }
      task.put(records); task.flush(Map.of()); task.stop();
    }
  }
}
