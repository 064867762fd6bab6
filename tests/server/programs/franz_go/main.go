// The scenario of tests/support/clients/scenario.py with franz-go. Arguments: the server's address.
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

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const count = 200

var servers string

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func client(options ...kgo.Opt) *kgo.Client {
	made, err := kgo.NewClient(append(options, kgo.SeedBrokers(servers))...)
	must(err)
	return made
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
	servers = os.Args[1]
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	admin := kadm.NewClient(client())
	defer admin.Close()
	var seen told
	topics(ctx, admin, &seen)
	produce(ctx)
	group(ctx, &seen)
	transactions(ctx)
	committed(ctx, admin, &seen)
	groups, err := admin.ListGroups(ctx)
	must(err)
	seen.Groups = groups.Groups()
	offsets, err := admin.FetchOffsets(ctx, "copiers")
	must(err)
	for number := int32(0); number < 2; number++ {
		at, _ := offsets.Lookup("events", number)
		seen.Offsets = append(seen.Offsets, at.At)
	}
	must(json.NewEncoder(os.Stdout).Encode(seen))
}

func topics(ctx context.Context, admin *kadm.Client, seen *told) {
	kept := "3600000"
	_, err := admin.CreateTopic(ctx, 2, 1, map[string]*string{"retention.ms": &kept}, "events")
	must(err)
	for name, partitions := range map[string]int32{"results": 2, "gone": 1} {
		_, err = admin.CreateTopic(ctx, partitions, 1, nil, name)
		must(err)
	}
	configs, err := admin.DescribeTopicConfigs(ctx, "events")
	must(err)
	for _, config := range configs[0].Configs {
		if config.Key == "retention.ms" {
			seen.Retention = *config.Value
		}
	}
	grown, err := admin.UpdatePartitions(ctx, 3, "gone")
	must(err)
	must(grown.Error())
	gone, err := admin.ListTopics(ctx, "gone")
	must(err)
	if len(gone["gone"].Partitions) != 3 {
		must(fmt.Errorf("three partitions, not %v", gone["gone"].Partitions))
	}
	_, err = admin.DeleteTopic(ctx, "gone")
	must(err)
	left, err := admin.ListTopics(ctx)
	must(err)
	seen.Topics = left.Names()
}

func produce(ctx context.Context) {
	producer := client(
		kgo.ProducerBatchCompression(kgo.GzipCompression()),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
	defer producer.Close()
	var records []*kgo.Record
	for n := 0; n < count; n++ {
		records = append(records, &kgo.Record{
			Topic:     "events",
			Partition: int32(n % 2),
			Key:       []byte(fmt.Sprintf("k%d", n)),
			Value:     []byte(fmt.Sprintf("value %d", n)),
			Headers:   []kgo.RecordHeader{{Key: "from", Value: []byte("franz-go")}},
		})
	}
	must(producer.ProduceSync(ctx, records...).FirstErr())
}

// A member of the group, and the partitions that it has.
type member struct {
	*kgo.Client
	lock sync.Mutex
	has  map[int32]bool
}

func join() *member {
	m := &member{has: map[int32]bool{}}
	change := func(has bool) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, changed map[string][]int32) {
			m.lock.Lock()
			defer m.lock.Unlock()
			for _, number := range changed["events"] {
				if has {
					m.has[number] = true
				} else {
					delete(m.has, number)
				}
			}
		}
	}
	m.Client = client(
		kgo.ConsumerGroup("readers"),
		kgo.ConsumeTopics("events"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.HeartbeatInterval(200*time.Millisecond),
		kgo.OnPartitionsAssigned(change(true)),
		kgo.OnPartitionsRevoked(change(false)),
		kgo.OnPartitionsLost(change(false)),
	)
	return m
}

func (m *member) partitions() []int32 {
	m.lock.Lock()
	defer m.lock.Unlock()
	found := []int32{}
	for number := range m.has {
		found = append(found, number)
	}
	sort.Slice(found, func(a, b int) bool { return found[a] < found[b] })
	return found
}

func group(ctx context.Context, seen *told) {
	stays, goes := join(), join()
	defer stays.Close()
	// What came is kept by partition and offset: a record that both members read counts once.
	read := map[string]string{}
	poll := func(m *member) {
		brief, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		m.PollFetches(brief).EachRecord(func(record *kgo.Record) {
			read[fmt.Sprint(record.Partition, record.Offset)] = string(record.Value)
		})
		must(ctx.Err())
	}
	for len(stays.partitions()) != 1 || len(goes.partitions()) != 1 {
		poll(stays)
		poll(goes)
	}
	seen.Together = [][]int32{stays.partitions(), goes.partitions()}
	must(goes.LeaveGroupContext(ctx))
	goes.Close()
	for len(stays.partitions()) != 2 || len(read) < count {
		poll(stays)
	}
	seen.Alone = stays.partitions()
	ends := map[int32]kgo.EpochOffset{}
	for number := int32(0); number < 2; number++ {
		ends[number] = kgo.EpochOffset{Epoch: -1, Offset: count / 2}
	}
	var failed error
	stays.CommitOffsetsSync(ctx, map[string]map[int32]kgo.EpochOffset{"events": ends},
		func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, response *kmsg.OffsetCommitResponse, err error) {
			failed = answered(response, err)
		})
	must(failed)
	for _, value := range read {
		seen.Read = append(seen.Read, value)
	}
}

// answered returns the first error of a commit.
func answered(response *kmsg.OffsetCommitResponse, err error) error {
	if err != nil {
		return err
	}
	for _, topic := range response.Topics {
		for _, partition := range topic.Partitions {
			if err := kerr.ErrorForCode(partition.ErrorCode); err != nil {
				return err
			}
		}
	}
	return nil
}

func transactions(ctx context.Context) {
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(servers),
		kgo.TransactionalID("copier"),
		kgo.ConsumerGroup("copiers"),
		kgo.ConsumeTopics("events"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.RequireStableFetchOffsets(),
	)
	must(err)
	defer session.Close()
	var records []*kgo.Record
	for len(records) < count {
		session.PollFetches(ctx).EachRecord(func(record *kgo.Record) { records = append(records, record) })
		must(ctx.Err())
	}
	must(session.Begin())
	for n := 0; n < 3; n++ {
		must(session.ProduceSync(ctx, &kgo.Record{Topic: "results", Value: []byte(fmt.Sprintf("aborted %d", n))}).FirstErr())
	}
	// An abort takes the session's position back to what is committed, which is nothing: all is read again.
	_, err = session.End(ctx, kgo.TryAbort)
	must(err)
	for done := 0; done < count; {
		fetched := session.PollFetches(ctx)
		must(ctx.Err())
		must(session.Begin())
		fetched.EachRecord(func(record *kgo.Record) {
			value := []byte(strings.ToUpper(string(record.Value)))
			session.Produce(ctx, &kgo.Record{Topic: "results", Partition: record.Partition, Value: value}, nil)
			done++
		})
		ended, err := session.End(ctx, kgo.TryCommit)
		must(err)
		if !ended {
			must(fmt.Errorf("the transaction did not commit"))
		}
	}
}

func committed(ctx context.Context, admin *kadm.Client, seen *told) {
	ends, err := admin.ListCommittedOffsets(ctx, "results")
	must(err)
	reader := client(
		kgo.ConsumeTopics("results"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(),
	)
	defer reader.Close()
	reached := map[int32]bool{}
	for len(reached) < 2 {
		reader.PollFetches(ctx).EachRecord(func(record *kgo.Record) {
			if !record.Attrs.IsControl() {
				seen.Committed = append(seen.Committed, string(record.Value))
			}
			if end, _ := ends.Lookup("results", record.Partition); record.Offset == end.Offset-1 {
				reached[record.Partition] = true
			}
		})
		must(ctx.Err())
	}
}
