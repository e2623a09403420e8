import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.FileReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.InvalidStateStoreException;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * A Kafka Streams application with one KTable: for each key of the input the number of its records since it was deleted
 * last, and the last value. Only the changelog knows the numbers.
 *
 * The file of the first argument has its configuration; "input" is the topic, and what begins with "changelog." is set on the
 * changelog topic. A value "-" deletes the key; values of keys that begin with "filler" are not counted. A line "table" on
 * standard input prints a JSON line for each row and one with the number of rows; the end of the input ends the application. Each
 * change of its state and each restoration is a JSON line as well.
 */
public final class StreamsTable {
    private static final String STORE = "table";
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final PrintStream OUT = System.out;

    public static void main(String[] arguments) throws Exception {
        Properties configuration = new Properties();
        try (FileReader file = new FileReader(arguments[0], StandardCharsets.UTF_8)) {
            configuration.load(file);
        }
        KafkaStreams streams = new KafkaStreams(topology(configuration).build(), configuration);
        streams.setStateListener((now, before) -> print(Map.of("event", "state", "state", now.name())));
        streams.setGlobalStateRestoreListener(new Restorations());
        streams.setUncaughtExceptionHandler(thrown -> {
            thrown.printStackTrace();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.start();
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        while (requests.readLine() != null) {
            printTable(streams);
        }
        streams.close();
        System.exit(0);
    }

    private static StreamsBuilder topology(Properties configuration) {
        Map<String, String> changelog = new HashMap<>();
        for (String name : configuration.stringPropertyNames()) {
            if (name.startsWith("changelog.")) {
                changelog.put(name.substring("changelog.".length()), configuration.getProperty(name));
            }
        }
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(configuration.getProperty("input"), Consumed.with(Serdes.String(), Serdes.String()))
            .groupByKey(Grouped.with(Serdes.String(), Serdes.String()))
            .aggregate(
                () -> "0",
                StreamsTable::next,
                Materialized.<String, String>as(Stores.inMemoryKeyValueStore(STORE))
                    .withKeySerde(Serdes.String())
                    .withValueSerde(Serdes.String())
                    .withCachingDisabled()
                    .withLoggingEnabled(changelog));
        return builder;
    }

    private static String next(String key, String value, String row) {
        if (value.equals("-")) {
            return null;
        }
        int count = key.startsWith("filler") ? 0 : Integer.parseInt(row.split(" ", 2)[0]) + 1;
        return count + " " + value;
    }

    private static void printTable(KafkaStreams streams) {
        Map<String, Object> end = new LinkedHashMap<>(Map.of("event", "end"));
        try {
            StoreQueryParameters<ReadOnlyKeyValueStore<String, String>> query =
                StoreQueryParameters.fromNameAndType(STORE, QueryableStoreTypes.keyValueStore());
            int rows = 0;
            try (KeyValueIterator<String, String> all = streams.store(query).all()) {
                for (; all.hasNext(); rows++) {
                    KeyValue<String, String> row = all.next();
                    print(Map.of("key", row.key, "value", row.value));
                }
            }
            end.put("rows", rows);
        } catch (InvalidStateStoreException restoring) {
            end.put("unavailable", restoring.getClass().getSimpleName());
        }
        print(end);
    }

    private static synchronized void print(Map<String, ?> line) {
        try {
            OUT.println(JSON.writeValueAsString(line));
        } catch (JsonProcessingException impossible) {
            throw new IllegalStateException(impossible);
        }
        OUT.flush();
    }

    private static final class Restorations implements StateRestoreListener {
        @Override
        public void onRestoreStart(TopicPartition partition, String store, long start, long end) {
            print(Map.of("event", "restore", "topic", partition.topic(), "start", start, "end", end));
        }

        @Override
        public void onBatchRestored(TopicPartition partition, String store, long end, long count) {
        }

        @Override
        public void onRestoreEnd(TopicPartition partition, String store, long count) {
            print(Map.of("event", "restored", "topic", partition.topic(), "records", count));
        }
    }
}
