import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListOffsetsResult;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

/** The scenario of tests/support/clients/scenario.py with Java's clients. Arguments: the server's address. */
public final class Scenario {
    private static final int COUNT = 200;
    private static final String STRINGS = "org.apache.kafka.common.serialization.String";
    private static final List<TopicPartition> EVENTS =
            List.of(new TopicPartition("events", 0), new TopicPartition("events", 1));
    private static final long PATIENCE_MS = 120_000;

    private final String servers;
    private final List<String> told = new ArrayList<>();

    private Scenario(String servers) {
        this.servers = servers;
    }

    public static void main(String[] arguments) throws Exception {
        System.out.println(new Scenario(arguments[0]).run());
    }

    private String run() throws Exception {
        try (Admin admin = Admin.create(settings())) {
            topics(admin);
            produce();
            group(admin);
            transactions();
            committed(admin);
            tell("groups", admin.listGroups().all().get().stream().map(each -> each.groupId()).toList());
            var offsets = admin.listConsumerGroupOffsets("copiers").partitionsToOffsetAndMetadata().get();
            tellRaw("offsets", EVENTS.stream().map(at -> offsets.get(at).offset()).toList().toString());
            describe(admin);
        }
        return "{" + String.join(", ", told) + "}";
    }

    private void topics(Admin admin) throws Exception {
        var events = new NewTopic("events", 2, (short) 1).configs(Map.of("retention.ms", "1000"));
        var more = List.of(events, new NewTopic("results", 2, (short) 1), new NewTopic("gone", 1, (short) 1));
        admin.createTopics(more).all().get();
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, "events");
        var longer = new AlterConfigOp(new ConfigEntry("retention.ms", "3600000"), AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(longer))).all().get();
        var config = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        admin.createPartitions(Map.of("gone", NewPartitions.increaseTo(3))).all().get();
        var gone = admin.describeTopics(List.of("gone")).allTopicNames().get().get("gone");
        check(gone.partitions().size() == 3, "three partitions, not " + gone);
        admin.deleteTopics(List.of("gone")).all().get();
        tell("topics", admin.listTopics().names().get());
        tellRaw("retention", quoted(config.get("retention.ms").value()));
    }

    private void produce() throws Exception {
        try (var producer = producer(Map.of("compression.type", "gzip", "linger.ms", 5))) {
            for (int n = 0; n < COUNT; n++) {
                var record = new ProducerRecord<>("events", n % 2, "k" + n, "value " + n);
                record.headers().add("from", "Java".getBytes(StandardCharsets.UTF_8));
                producer.send(record);
            }
            producer.flush();
        }
    }

    /** Two members share the topic, by turns in this thread; then one of them has it all, and reads it. */
    private void group(Admin admin) throws Exception {
        List<String> read = new ArrayList<>();
        try (var stays = member()) {
            var goes = member();
            tellRaw("together", until(() -> {
                poll(stays, read);
                poll(goes, read);
                var found = List.of(numbers(stays.assignment()), numbers(goes.assignment()));
                return found.stream().allMatch(each -> each.size() == 1) ? found.toString() : null;
            }));
            var group = admin.describeConsumerGroups(List.of("readers")).all().get().get("readers");
            check(group.members().size() == 2 && group.groupState() == GroupState.STABLE, group.toString());
            goes.close();
            until(() -> {
                poll(stays, read);
                return stays.assignment().size() == 2 ? "" : null;
            });
            stays.seekToBeginning(EVENTS);
            read.clear();
            until(() -> {
                poll(stays, read);
                return read.size() >= COUNT ? "" : null;
            });
            stays.commitSync();
            tellRaw("alone", numbers(stays.assignment()).toString());
        }
        tell("read", read);
    }

    private void transactions() {
        try (var producer = producer(Map.of("transactional.id", "copier"))) {
            producer.initTransactions();
            producer.beginTransaction();
            for (int n = 0; n < 3; n++) {
                producer.send(new ProducerRecord<>("results", "aborted " + n));
            }
            producer.flush();
            producer.abortTransaction();
            producer.beginTransaction();
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            try (var reader = consumer(Map.of("group.id", "copiers", "auto.offset.reset", "earliest"))) {
                reader.assign(EVENTS);
                for (int count = 0; count < COUNT; ) {
                    for (ConsumerRecord<String, String> each : reader.poll(Duration.ofSeconds(1))) {
                        var value = each.value().toUpperCase(Locale.ROOT);
                        producer.send(new ProducerRecord<>("results", each.partition(), null, value));
                        count++;
                    }
                }
                EVENTS.forEach(at -> offsets.put(at, new OffsetAndMetadata(reader.position(at))));
                producer.sendOffsetsToTransaction(offsets, reader.groupMetadata());
            }
            producer.commitTransaction();
        }
    }

    private void committed(Admin admin) throws Exception {
        List<String> found = new ArrayList<>();
        var parts = List.of(new TopicPartition("results", 0), new TopicPartition("results", 1));
        try (var reader = consumer(Map.of("isolation.level", "read_committed"))) {
            reader.assign(parts);
            reader.seekToBeginning(parts);
            var ends = reader.endOffsets(parts);
            while (parts.stream().anyMatch(at -> reader.position(at) < ends.get(at))) {
                poll(reader, found);
            }
        }
        tell("committed", found);
    }

    /** What only Java's Admin asks for. */
    private void describe(Admin admin) throws Exception {
        check(admin.describeCluster().nodes().get().size() == 1, "one node");
        var transaction = admin.describeTransactions(List.of("copier")).all().get().get("copier");
        check(transaction.state().toString().equals("CompleteCommit"), transaction.toString());
        var producers = admin.describeProducers(EVENTS).all().get();
        check(producers.get(EVENTS.get(0)).activeProducers().size() == 1, producers.toString());
        var scratch = new TopicPartition("scratch", 0);
        admin.createTopics(List.of(new NewTopic("scratch", 1, (short) 1))).all().get();
        try (var producer = producer(Map.of())) {
            for (int n = 0; n < 3; n++) {
                producer.send(new ProducerRecord<>("scratch", "x"));
            }
        }
        admin.deleteRecords(Map.of(scratch, RecordsToDelete.beforeOffset(2))).all().get();
        ListOffsetsResult listed = admin.listOffsets(Map.of(scratch, OffsetSpec.earliest()));
        check(listed.partitionResult(scratch).get().offset() == 2, "the log starts at 2");
        admin.deleteTopics(List.of("scratch")).all().get();
    }

    private Map<String, Object> settings() {
        return new HashMap<>(Map.of("bootstrap.servers", servers));
    }

    private KafkaProducer<String, String> producer(Map<String, Object> more) {
        var settings = settings();
        settings.put("key.serializer", STRINGS + "Serializer");
        settings.put("value.serializer", STRINGS + "Serializer");
        settings.putAll(more);
        return new KafkaProducer<>(settings);
    }

    private KafkaConsumer<String, String> consumer(Map<String, Object> more) {
        var settings = settings();
        settings.put("key.deserializer", STRINGS + "Deserializer");
        settings.put("value.deserializer", STRINGS + "Deserializer");
        settings.put("enable.auto.commit", false);
        settings.putAll(more);
        return new KafkaConsumer<>(settings);
    }

    private KafkaConsumer<String, String> member() {
        var member = consumer(
                Map.of("group.id", "readers", "auto.offset.reset", "earliest", "heartbeat.interval.ms", 200));
        member.subscribe(Set.of("events"));
        return member;
    }

    private static void poll(KafkaConsumer<String, String> consumer, List<String> values) {
        consumer.poll(Duration.ofMillis(50)).forEach(record -> values.add(record.value()));
    }

    private static Collection<Integer> numbers(Collection<TopicPartition> parts) {
        return parts.stream().map(TopicPartition::partition).collect(Collectors.toCollection(TreeSet::new));
    }

    private static String until(Supplier<String> look) {
        long end = System.currentTimeMillis() + PATIENCE_MS;
        String found;
        while ((found = look.get()) == null) {
            check(System.currentTimeMillis() < end, "it did not come in " + PATIENCE_MS + " ms");
        }
        return found;
    }

    private static void check(boolean held, String what) {
        if (!held) {
            throw new AssertionError(what);
        }
    }

    private void tell(String name, Collection<String> values) {
        tellRaw(name, values.stream().map(Scenario::quoted).toList().toString());
    }

    private void tellRaw(String name, String json) {
        told.add(quoted(name) + ": " + json);
    }

    private static String quoted(String text) {
        return '"' + text + '"';
    }
}
