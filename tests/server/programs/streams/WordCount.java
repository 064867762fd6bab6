import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Counts the words of the topic "lines" exactly once, and writes each new count of a word to "counts": a group of
 * consumers, a topic of its own by which the words are partitioned anew, a store in RocksDB and its changelog.
 *
 * <p>Arguments: the server's address, the directory of the state, then settings as name=value. Prints each state
 * that it comes to, and the first error of a thread, which ends it.
 */
public final class WordCount {
    private WordCount() {}

    public static void main(String[] arguments) throws Exception {
        var streams = new KafkaStreams(topology(), settings(arguments));
        var ended = new CountDownLatch(1);
        streams.setStateListener((now, before) -> {
            System.out.println(now);
            if (now == KafkaStreams.State.ERROR || now == KafkaStreams.State.NOT_RUNNING) {
                ended.countDown();
            }
        });
        streams.setUncaughtExceptionHandler(error -> {
            for (Throwable each = error; each != null; each = each.getCause()) {
                System.out.println(each);
            }
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.start();
        ended.await();
        streams.close();
        System.exit(1);
    }

    private static org.apache.kafka.streams.Topology topology() {
        var builder = new StreamsBuilder();
        var strings = Serdes.String();
        builder.stream("lines", Consumed.with(strings, strings))
                .flatMapValues(line -> List.of(line.split(" ")))
                .groupBy((key, word) -> word, Grouped.with("words", strings, strings))
                .count(Materialized.as("counted"))
                .toStream()
                .mapValues(count -> Long.toString(count))
                .to("counts", Produced.with(strings, strings));
        return builder.build();
    }

    private static Properties settings(String[] arguments) {
        var settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "word-count");
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[1]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0); // each update is written
        for (String each : List.of(arguments).subList(2, arguments.length)) {
            var pair = each.split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        return settings;
    }
}
