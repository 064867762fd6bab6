// A member of a share group with franz-go. Arguments: the server's address, the group, the topic.
//
// Ten records are there: 0 to 2 are accepted, 3 to 5 released, 6 and 7 rejected, 8 and 9 renewed; what comes
// again is accepted. Prints a line for each step: "NAME offset/delivery count ...".
package main

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// poll waits until so many records have come.
func poll(ctx context.Context, client *kgo.Client, count int) []*kgo.Record {
	var found []*kgo.Record
	for len(found) < count {
		fetches := client.PollFetches(ctx)
		must(fetches.Err())
		found = append(found, fetches.Records()...)
	}
	return found
}

func tell(name string, records []*kgo.Record) {
	told := make([]string, 0, len(records))
	for _, record := range records {
		told = append(told, fmt.Sprintf("%d/%d", record.Offset, record.DeliveryCount()))
	}
	sort.Strings(told)
	fmt.Println(name, strings.Join(told, " "))
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	failed := make(chan error, 100)
	client, err := kgo.NewClient(
		kgo.SeedBrokers(os.Args[1]),
		kgo.ShareGroup(os.Args[2]),
		kgo.ConsumeTopics(os.Args[3]),
		kgo.ShareAckCallback(func(_ *kgo.Client, results kgo.ShareAckResults) {
			if err := results.Error(); err != nil {
				failed <- err
			}
		}),
	)
	must(err)
	records := poll(ctx, client, 10)
	tell("first", records)
	for _, record := range records {
		switch {
		case record.Offset < 3:
			record.Ack(kgo.AckAccept)
		case record.Offset < 6:
			record.Ack(kgo.AckRelease)
		case record.Offset < 8:
			record.Ack(kgo.AckReject)
		default:
			record.Ack(kgo.AckRenew)
		}
	}
	must(client.FlushAcks(ctx))
	for _, record := range records[8:] {
		record.Ack(kgo.AckAccept)
	}
	must(client.FlushAcks(ctx))
	again := poll(ctx, client, 3)
	tell("released", again)
	for _, record := range again {
		record.Ack(kgo.AckAccept)
	}
	must(client.FlushAcks(ctx))
	client.Close()
	select {
	case err := <-failed:
		must(err)
	default:
		fmt.Println("closed")
	}
}
