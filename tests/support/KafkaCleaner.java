import java.io.File;
import java.io.FileReader;
import java.lang.management.ManagementFactory;
import java.lang.reflect.Method;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.Properties;

import com.sun.management.OperatingSystemMXBean;

import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.storage.internals.log.AbortedTxn;
import org.apache.kafka.storage.internals.log.CleanedTransactionMetadata;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.CleanerStats;
import org.apache.kafka.storage.internals.log.LastRecord;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.TransactionIndex;
import org.apache.kafka.storage.internals.utils.Throttler;

/**
 * Both passes of Kafka's own Cleaner over the segments of each directory below the one given, with the clock, the bounds and
 * the producers of its terms.properties; no broker. The cleaned segment is left as cleaned.log, its transaction index as
 * cleaned.txnindex, the map's latest offset in latest. Prints the CPU seconds of the process for each.
 */
public class KafkaCleaner {
    private static final TopicPartition PARTITION = new TopicPartition("compacted", 0);
    private static final OperatingSystemMXBean CPU =
        (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    public static void main(String[] arguments) throws Exception {
        File[] logs = new File(arguments[0]).listFiles(File::isDirectory);
        Arrays.sort(logs);
        for (File log : logs) {
            long begun = CPU.getProcessCpuTime();
            clean(log);
            System.out.println((CPU.getProcessCpuTime() - begun) / 1e9);
        }
    }

    private static void clean(File directory) throws Exception {
        Properties terms = new Properties();
        try (FileReader reader = new FileReader(new File(directory, "terms.properties"))) {
            terms.load(reader);
        }
        LogConfig config = new LogConfig(Map.of());
        SkimpyOffsetMap map = new SkimpyOffsetMap(Integer.parseInt(terms.getProperty("map.bytes")));
        Throttler throttler = new Throttler(Double.MAX_VALUE, 300, "cleaner", "bytes", Time.SYSTEM);
        Cleaner cleaner = new Cleaner(0, map, 1 << 20, 1 << 20, 0.9, throttler, Time.SYSTEM, partition -> { });
        List<LogSegment> segments = new ArrayList<>();
        for (long base : numbers(terms, "bases")) {
            segments.add(LogSegment.open(directory, base, config, Time.SYSTEM, true, 0, false, ""));
        }
        long firstDirty = Long.parseLong(terms.getProperty("first.dirty"));
        List<Long> ends = numbers(terms, "ends");
        buildMap(cleaner, map, segments, ends, firstDirty, abortedFrom(directory, terms, firstDirty));
        Files.writeString(directory.toPath().resolve("latest"), Long.toString(map.latestOffset()));
        cleanInto(cleaner, map, directory, config, segments, terms);
    }

    private static void buildMap(Cleaner cleaner, SkimpyOffsetMap map, List<LogSegment> segments, List<Long> ends,
                                 long firstDirty, List<AbortedTxn> aborted) throws Exception {
        Method build = method("buildOffsetMapForSegment");
        CleanedTransactionMetadata transactions = new CleanedTransactionMetadata();
        transactions.addAbortedTransactions(aborted);
        for (int n = 0; n < segments.size(); n++) {
            if (ends.get(n) <= firstDirty) {
                continue;
            }
            Object full = build.invoke(cleaner, PARTITION, segments.get(n), map, firstDirty, ends.get(n), 1 << 20,
                transactions, new CleanerStats(Time.SYSTEM));
            if ((Boolean) full) {
                throw new IllegalStateException("the map is full");
            }
        }
    }

    private static void cleanInto(Cleaner cleaner, SkimpyOffsetMap map, File directory, LogConfig config,
                                  List<LogSegment> segments, Properties terms) throws Exception {
        Method clean = method("cleanInto");
        long now = Long.parseLong(terms.getProperty("now"));
        long retention = Long.parseLong(terms.getProperty("delete.retention"));
        long bound = Long.parseLong(terms.getProperty("bound"));
        long base = segments.get(0).baseOffset();
        LogSegment cleaned = LogSegment.open(directory, base, config, Time.SYSTEM, false, 0, false, ".cleaned");
        CleanedTransactionMetadata transactions = new CleanedTransactionMetadata();
        transactions.setCleanedIndex(Optional.of(cleaned.txnIndex()));
        transactions.addAbortedTransactions(aborted(terms));
        for (LogSegment segment : segments) {
            clean.invoke(cleaner, PARTITION, segment.log(), cleaned, map, true, retention, 1 << 20, transactions,
                producers(terms), bound, new CleanerStats(Time.SYSTEM), now);
        }
        cleaned.flush();
        Path directoryPath = directory.toPath();
        Files.copy(cleaned.log().file().toPath(), directoryPath.resolve("cleaned.log"), StandardCopyOption.REPLACE_EXISTING);
        Path index = cleaned.txnIndex().file().toPath();
        if (Files.exists(index)) {
            Files.copy(index, directoryPath.resolve("cleaned.txnindex"), StandardCopyOption.REPLACE_EXISTING);
        }
        cleaned.close();
        for (LogSegment segment : segments) {
            segment.close();
        }
    }

    private static Method method(String name) {
        for (Method one : Cleaner.class.getDeclaredMethods()) {
            if (one.getName().equals(name)) {
                one.setAccessible(true);
                return one;
            }
        }
        throw new IllegalStateException("Kafka's Cleaner has no method " + name);
    }

    private static List<AbortedTxn> aborted(Properties terms) {
        List<AbortedTxn> found = new ArrayList<>();
        List<Long> all = numbers(terms, "aborted");
        for (int n = 0; n < all.size(); n += 4) {
            found.add(new AbortedTxn(all.get(n), all.get(n + 1), all.get(n + 2), all.get(n + 3)));
        }
        return found;
    }

    /** Those that a broker gives its first pass: by its own transaction index, that end in the dirty part. */
    private static List<AbortedTxn> abortedFrom(File directory, Properties terms, long firstDirty) throws Exception {
        try (TransactionIndex index = new TransactionIndex(0, new File(directory, "whole.txnindex"))) {
            for (AbortedTxn one : aborted(terms)) {
                index.append(one);
            }
            return index.collectAbortedTxns(firstDirty, Long.parseLong(terms.getProperty("bound"))).abortedTransactions();
        }
    }

    private static Map<Long, LastRecord> producers(Properties terms) {
        Map<Long, LastRecord> found = new HashMap<>();
        List<Long> all = numbers(terms, "producers");
        for (int n = 0; n < all.size(); n += 3) {
            long offset = all.get(n + 1);
            OptionalLong last = offset < 0 ? OptionalLong.empty() : OptionalLong.of(offset);
            found.put(all.get(n), new LastRecord(last, all.get(n + 2).shortValue()));
        }
        return found;
    }

    private static List<Long> numbers(Properties terms, String name) {
        List<Long> found = new ArrayList<>();
        for (String part : terms.getProperty(name).split(",")) {
            if (!part.isBlank()) {
                found.add(Long.parseLong(part.trim()));
            }
        }
        return found;
    }
}
