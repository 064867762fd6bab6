// The scenario of tests/support/clients/scenario.py with sarama. Arguments: the server's address.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

const count = 200

var servers []string

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func settings() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V4_1_0_0
	return config
}

type told struct {
	Topics    []string  `json:"topics"`
	Retention string    `json:"retention"`
	Together  [][]int32 `json:"together"`
	Alone     []int32   `json:"alone"`
	Read      []string  `json:"read"`
	Committed []string  `json:"committed"`
	Groups    []string  `json:"groups"`
	Offsets   []int64   `json:"offsets"`
}

func main() {
	servers = []string{os.Args[1]}
	time.AfterFunc(2*time.Minute, func() { must(fmt.Errorf("the scenario did not end in two minutes")) })
	admin, err := sarama.NewClusterAdmin(servers, settings())
	must(err)
	defer admin.Close()
	var seen told
	topics(admin, &seen)
	produce()
	group(&seen)
	transactions()
	committed(&seen)
	groups, err := admin.ListConsumerGroups()
	must(err)
	for name := range groups {
		seen.Groups = append(seen.Groups, name)
	}
	offsets, err := admin.ListConsumerGroupOffsets("copiers", map[string][]int32{"events": {0, 1}})
	must(err)
	for number := int32(0); number < 2; number++ {
		seen.Offsets = append(seen.Offsets, offsets.GetBlock("events", number).Offset)
	}
	must(json.NewEncoder(os.Stdout).Encode(seen))
}

func topics(admin sarama.ClusterAdmin, seen *told) {
	kept := "3600000"
	events := map[string]*string{"retention.ms": &kept}
	must(admin.CreateTopic("events", &sarama.TopicDetail{NumPartitions: 2, ReplicationFactor: 1, ConfigEntries: events}, false))
	must(admin.CreateTopic("results", &sarama.TopicDetail{NumPartitions: 2, ReplicationFactor: 1}, false))
	must(admin.CreateTopic("gone", &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1}, false))
	told, err := admin.DescribeConfig(sarama.ConfigResource{
		Type: sarama.TopicResource, Name: "events", ConfigNames: []string{"retention.ms"},
	})
	must(err)
	seen.Retention = told[0].Value
	must(admin.CreatePartitions("gone", 3, nil, false))
	described, err := admin.DescribeTopics([]string{"gone"})
	must(err)
	if len(described[0].Partitions) != 3 {
		must(fmt.Errorf("three partitions, not %d", len(described[0].Partitions)))
	}
	must(admin.DeleteTopic("gone"))
	left, err := admin.ListTopics()
	must(err)
	for name := range left {
		seen.Topics = append(seen.Topics, name)
	}
}

func produce() {
	config := settings()
	config.Producer.Compression = sarama.CompressionGZIP
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Net.MaxOpenRequests = 1
	producer, err := sarama.NewSyncProducer(servers, config)
	must(err)
	defer producer.Close()
	var messages []*sarama.ProducerMessage
	for n := 0; n < count; n++ {
		messages = append(messages, &sarama.ProducerMessage{
			Topic:     "events",
			Partition: int32(n % 2),
			Key:       sarama.StringEncoder(fmt.Sprintf("k%d", n)),
			Value:     sarama.StringEncoder(fmt.Sprintf("value %d", n)),
			Headers:   []sarama.RecordHeader{{Key: []byte("from"), Value: []byte("sarama")}},
		})
	}
	must(producer.SendMessages(messages))
}

// A member of the group: the partitions that it has, and what it read.
type member struct {
	group sarama.ConsumerGroup
	end   context.CancelFunc
	over  chan struct{}
	lock  sync.Mutex
	has   []int32
	read  map[string]string
}

func (m *member) Setup(session sarama.ConsumerGroupSession) error {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.has = append([]int32{}, session.Claims()["events"]...)
	return nil
}

func (m *member) Cleanup(session sarama.ConsumerGroupSession) error {
	session.Commit()
	m.lock.Lock()
	defer m.lock.Unlock()
	m.has = nil
	return nil
}

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		m.lock.Lock()
		m.read[fmt.Sprint(message.Partition, message.Offset)] = string(message.Value)
		m.lock.Unlock()
		session.MarkMessage(message, "")
	}
	return nil
}

func (m *member) partitions() []int32 {
	m.lock.Lock()
	defer m.lock.Unlock()
	found := append([]int32{}, m.has...)
	sort.Slice(found, func(a, b int) bool { return found[a] < found[b] })
	return found
}

func (m *member) values() map[string]string {
	m.lock.Lock()
	defer m.lock.Unlock()
	found := map[string]string{}
	for at, value := range m.read {
		found[at] = value
	}
	return found
}

func join() *member {
	config := settings()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Group.Heartbeat.Interval = 200 * time.Millisecond
	group, err := sarama.NewConsumerGroup(servers, "readers", config)
	must(err)
	ctx, end := context.WithCancel(context.Background())
	m := &member{group: group, end: end, over: make(chan struct{}), read: map[string]string{}}
	go func() {
		defer close(m.over)
		for ctx.Err() == nil {
			must(group.Consume(ctx, []string{"events"}, m))
		}
	}()
	return m
}

func (m *member) leave() {
	m.end()
	<-m.over
	must(m.group.Close())
}

func wait(done func() bool) {
	for !done() {
		time.Sleep(10 * time.Millisecond)
	}
}

func group(seen *told) {
	stays, goes := join(), join()
	wait(func() bool {
		seen.Together = [][]int32{stays.partitions(), goes.partitions()}
		return len(seen.Together[0]) == 1 && len(seen.Together[1]) == 1
	})
	goes.leave()
	wait(func() bool {
		read := stays.values()
		for at, value := range goes.values() {
			read[at] = value
		}
		seen.Read = nil
		for _, value := range read {
			seen.Read = append(seen.Read, value)
		}
		seen.Alone = stays.partitions()
		return len(seen.Alone) == 2 && len(read) == count
	})
	stays.leave()
}

func transactions() {
	config := settings()
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Transaction.ID = "copier"
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Net.MaxOpenRequests = 1
	producer, err := sarama.NewSyncProducer(servers, config)
	must(err)
	defer producer.Close()
	send := func(partition int32, value string) *sarama.ProducerMessage {
		return &sarama.ProducerMessage{Topic: "results", Partition: partition, Value: sarama.StringEncoder(value)}
	}
	must(producer.BeginTxn())
	for n := 0; n < 3; n++ {
		_, _, err := producer.SendMessage(send(0, fmt.Sprintf("aborted %d", n)))
		must(err)
	}
	must(producer.AbortTxn())
	must(producer.BeginTxn())
	var messages []*sarama.ProducerMessage
	for number, values := range consumed("events", sarama.ReadUncommitted) {
		for _, value := range values {
			messages = append(messages, send(int32(number), strings.ToUpper(value)))
		}
	}
	must(producer.SendMessages(messages))
	offsets := []*sarama.PartitionOffsetMetadata{{Partition: 0, Offset: count / 2}, {Partition: 1, Offset: count / 2}}
	must(producer.AddOffsetsToTxn(map[string][]*sarama.PartitionOffsetMetadata{"events": offsets}, "copiers"))
	must(producer.CommitTxn())
}

// consumed returns the values of a topic's two partitions, each up to count / 2.
func consumed(topic string, level sarama.IsolationLevel) [][]string {
	config := settings()
	config.Consumer.IsolationLevel = level
	consumer, err := sarama.NewConsumer(servers, config)
	must(err)
	defer consumer.Close()
	found := make([][]string, 2)
	for number := range found {
		part, err := consumer.ConsumePartition(topic, int32(number), sarama.OffsetOldest)
		must(err)
		for len(found[number]) < count/2 {
			found[number] = append(found[number], string((<-part.Messages()).Value))
		}
		must(part.Close())
	}
	return found
}

func committed(seen *told) {
	for _, values := range consumed("results", sarama.ReadCommitted) {
		seen.Committed = append(seen.Committed, values...)
	}
}
