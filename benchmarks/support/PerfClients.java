import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/**
 * What Kafka's own perf producer and consumer do, again and again in one process, so that windows of a second can be compared:
 * a JVM of its own for each would be measured while it warms up.
 *
 * <p>One command a line, one line of answer, "MiB/s" or "error ...":
 * "produce NAME TOPIC RECORDS", "consume NAME TOPIC RECORDS" (from the beginning of all partitions); before them
 * "way NAME BOOTSTRAP [CLIENT.SETTING=VALUE ...]", which answers "ok".
 */
public final class PerfClients {
  private static final int RECORD_BYTES = 1024;
  private static final Map<String, Properties> WAYS = new HashMap<>();
  private static final Map<String, KafkaProducer<byte[], byte[]>> PRODUCERS = new HashMap<>();
  private static final Map<String, KafkaConsumer<byte[], byte[]>> CONSUMERS = new HashMap<>();

  public static void main(String[] arguments) throws Exception {
    BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
    for (String line = commands.readLine(); line != null; line = commands.readLine()) {
      System.out.println(answer(line.split(" ")));
      System.out.flush();
    }
    PRODUCERS.values().forEach(producer -> producer.close(Duration.ZERO));
    CONSUMERS.values().forEach(KafkaConsumer::close);
  }

  private static String answer(String[] words) {
    try {
      switch (words[0]) {
        case "way":
          WAYS.put(words[1], settings(words));
          return "ok";
        case "produce":
          return produce(words[1], words[2], Integer.parseInt(words[3]));
        case "consume":
          return consume(words[1], words[2], Integer.parseInt(words[3]));
        default:
          return "error: no command " + words[0];
      }
    } catch (Exception failed) {
      return "error: " + failed;
    }
  }

  private static Properties settings(String[] words) {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", words[2]);
    for (int at = 3; at < words.length; at++) {
      String[] setting = words[at].split("=", 2);
      settings.put(setting[0], setting[1]);
    }
    for (String side : List.of("key.", "value.")) {
      String name = "org.apache.kafka.common.serialization.ByteArray";
      settings.put(side + "serializer", name + "Serializer");
      settings.put(side + "deserializer", name + "Deserializer");
    }
    settings.put("acks", "all");
    settings.put("batch.size", "65536");
    settings.put("linger.ms", "5");
    settings.put("enable.auto.commit", "false");
    return settings;
  }

  private static String produce(String way, String topic, int records) throws Exception {
    KafkaProducer<byte[], byte[]> producer = PRODUCERS.computeIfAbsent(way, name -> new KafkaProducer<>(WAYS.get(name)));
    producer.partitionsFor(topic);
    byte[] payload = new byte[RECORD_BYTES];
    new Random(1).nextBytes(payload);
    Exception[] failed = new Exception[1];
    long began = System.nanoTime();
    for (int number = 0; number < records; number++) {
      producer.send(
          new ProducerRecord<>(topic, payload),
          (stored, error) -> {
            if (error != null) {
              failed[0] = error;
            }
          });
    }
    producer.flush();
    String told = rate((long) records * RECORD_BYTES, began);
    if (failed[0] != null) {
      throw failed[0];
    }
    return told;
  }

  private static String consume(String way, String topic, int records) {
    KafkaConsumer<byte[], byte[]> consumer = CONSUMERS.computeIfAbsent(way, name -> new KafkaConsumer<>(WAYS.get(name)));
    List<TopicPartition> partitions =
        consumer.partitionsFor(topic).stream().map(one -> new TopicPartition(topic, one.partition())).toList();
    consumer.assign(partitions);
    consumer.seekToBeginning(partitions);
    partitions.forEach(consumer::position);
    long left = records;
    long bytes = 0;
    long began = System.nanoTime();
    while (left > 0) {
      var polled = consumer.poll(Duration.ofSeconds(60));
      if (polled.isEmpty()) {
        return "error: nothing came for a minute, " + left + " records are missing";
      }
      for (var record : polled) {
        bytes += record.value().length;
      }
      left -= polled.count();
    }
    String told = rate(bytes, began);
    consumer.unsubscribe();
    return told;
  }

  private static String rate(long bytes, long began) {
    double seconds = (System.nanoTime() - began) / 1e9;
    return String.format(Locale.ROOT, "%.1f", bytes / seconds / 1048576);
  }
}
