import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.TreeMap;

import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A member of a share group: what it is given, and what becomes of its acknowledgements.
 *
 * usage: Share SCENARIO BOOTSTRAP GROUP TOPIC
 *
 * Prints a line for each step: "NAME offset/delivery count ...".
 */
public class Share {
    private static final long PATIENCE_MS = 60_000;

    private final KafkaShareConsumer<String, String> consumer;

    private Share(String bootstrap, String group, String topic, boolean isExplicit) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        settings.put("share.acknowledgement.mode", isExplicit ? "explicit" : "implicit");
        consumer = new KafkaShareConsumer<>(settings);
        consumer.setAcknowledgementCommitCallback((offsets, error) -> {
            Map<Integer, String> told = new TreeMap<>();
            offsets.forEach((at, numbers) -> told.put(at.partition(), numbers.toString()));
            String how = error == null ? "ok" : error.getClass().getSimpleName();
            System.out.println("callback " + how + " " + told);
        });
        consumer.subscribe(List.of(topic));
    }

    public static void main(String[] arguments) throws Exception {
        String scenario = arguments[0];
        Share share = new Share(arguments[1], arguments[2], arguments[3], !scenario.equals("implicit"));
        switch (scenario) {
            case "types" -> share.types();
            case "implicit" -> share.implicit();
            case "late" -> share.late();
            case "limit" -> share.limit();
            default -> throw new IllegalArgumentException(scenario);
        }
    }

    /** Ten records, all types of acknowledgements, and what comes again. */
    private void types() {
        List<ConsumerRecord<String, String>> records = poll(10);
        tell("first", records);
        for (ConsumerRecord<String, String> record : records) {
            long offset = record.offset();
            AcknowledgeType type = offset < 3 ? AcknowledgeType.ACCEPT
                : offset < 6 ? AcknowledgeType.RELEASE
                : offset < 8 ? AcknowledgeType.REJECT
                : AcknowledgeType.RENEW;
            consumer.acknowledge(record, type);
        }
        tell("commit", consumer.commitSync());
        List<ConsumerRecord<String, String>> renewed = poll(2);
        tell("renewed", renewed);
        renewed.forEach(consumer::acknowledge);
        tell("commit", consumer.commitSync());
        List<ConsumerRecord<String, String>> released = poll(3);
        tell("released", released);
        released.forEach(record -> consumer.acknowledge(record, AcknowledgeType.ACCEPT));
        System.out.println("lock " + consumer.acquisitionLockTimeoutMs().orElse(-1));
        consumer.close();
        System.out.println("closed");
    }

    /** Each poll accepts the records of the one before, and so does the end. */
    private void implicit() {
        tell("first", poll(10));
        consumer.poll(Duration.ofMillis(200));
        consumer.close();
        System.out.println("closed");
    }

    /** Records whose locks have run out. */
    private void late() throws InterruptedException {
        List<ConsumerRecord<String, String>> records = poll(10);
        tell("first", records);
        Thread.sleep(2500);
        records.forEach(consumer::acknowledge);
        tell("commit", consumer.commitSync());
        List<ConsumerRecord<String, String>> again = poll(10);
        tell("again", again);
        again.forEach(consumer::acknowledge);
        tell("commit", consumer.commitSync());
        consumer.close();
    }

    /** Records that are always released, up to the limit of their deliveries. */
    private void limit() {
        long end = System.currentTimeMillis() + PATIENCE_MS;
        int idle = -1;
        while (idle < 3 && System.currentTimeMillis() < end) {
            List<ConsumerRecord<String, String>> records = new ArrayList<>();
            consumer.poll(Duration.ofMillis(700)).forEach(records::add);
            if (records.isEmpty()) {
                idle += idle < 0 ? 0 : 1; // a member may join for seconds
                continue;
            }
            idle = 0;
            tell("given", records);
            records.forEach(record -> consumer.acknowledge(record, AcknowledgeType.RELEASE));
            consumer.commitSync();
        }
        consumer.close();
    }

    private List<ConsumerRecord<String, String>> poll(int count) {
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        long end = System.currentTimeMillis() + PATIENCE_MS;
        while (found.size() < count && System.currentTimeMillis() < end) {
            consumer.poll(Duration.ofMillis(500)).forEach(found::add);
        }
        return found;
    }

    private static void tell(String name, List<ConsumerRecord<String, String>> records) {
        StringBuilder line = new StringBuilder(name);
        for (ConsumerRecord<String, String> record : records) {
            line.append(' ').append(record.offset()).append('/').append(record.deliveryCount().orElse((short) -1));
        }
        System.out.println(line);
    }

    private static void tell(String name, Map<TopicIdPartition, Optional<KafkaException>> told) {
        StringBuilder line = new StringBuilder(name);
        told.forEach((at, error) -> line.append(' ').append(at.partition()).append('=')
            .append(error.map(each -> each.getClass().getSimpleName()).orElse("ok")));
        System.out.println(line);
    }
}
