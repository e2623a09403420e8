// A consumer by franz-go for the tests of the gateway: reads what the JSON on its standard input asks for, and prints each
// record as a line of JSON.  tests/support/franz_client.py builds and runs it.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type access struct {
	Servers   string `json:"servers"`
	Mechanism string `json:"mechanism"`
	Username  string `json:"username"`
	Password  string `json:"password"`
	Authority string `json:"authority"`
}

// reading has the fields of tests/support/reading.py: whole partitions up to Ends (exclusive), or Count records from the
// log's end on, or Count records from each offset of Hops.
type reading struct {
	Topic             string          `json:"topic"`
	Beside            string          `json:"beside"`
	Ends              map[int32]int64 `json:"ends"`
	Start             string          `json:"start"`
	Membership        string          `json:"membership"`
	Group             string          `json:"group"`
	SinceMs           int64           `json:"since_ms"`
	Hops              []int64         `json:"hops"`
	Count             int             `json:"count"`
	Isolation         string          `json:"isolation"`
	Rack              string          `json:"rack"`
	MaxPartitionBytes int32           `json:"max_partition_bytes"`
	FetchMaxBytes     int32           `json:"fetch_max_bytes"`
	MaxWaitMs         int64           `json:"max_wait_ms"`
	Commits           bool            `json:"commits"`
	DeadlineS         float64         `json:"deadline_s"`
}

type task struct {
	Access  access  `json:"access"`
	Reading reading `json:"reading"`
}

type header struct {
	Name    string `json:"name"`
	Content []byte `json:"content"`
}

type line struct {
	Partition   int32    `json:"partition"`
	Offset      int64    `json:"offset"`
	TimestampMs int64    `json:"timestamp_ms"`
	Key         []byte   `json:"key"`
	Value       []byte   `json:"value"`
	Headers     []header `json:"headers"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	var wanted task
	if err := json.NewDecoder(os.Stdin).Decode(&wanted); err != nil {
		return err
	}
	options, err := optionsOf(wanted.Access, wanted.Reading)
	if err != nil {
		return err
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(wanted.Reading.DeadlineS*float64(time.Second)))
	defer cancel()
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	reader := &reader{client: client, wanted: wanted.Reading, out: json.NewEncoder(out)}
	switch wanted.Reading.Start {
	case "hops":
		return reader.readHops(ctx)
	case "latest":
		return reader.readCount(ctx, 0)
	}
	return reader.readToEnds(ctx)
}

func optionsOf(a access, r reading) ([]kgo.Opt, error) {
	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(a.Servers, ",")...),
		// What ends a partition may be a transaction's marker, which is no record.
		kgo.KeepControlRecords(),
		kgo.FetchMaxPartitionBytes(r.MaxPartitionBytes),
		kgo.FetchMaxBytes(r.FetchMaxBytes),
		kgo.FetchMaxWait(time.Duration(r.MaxWaitMs) * time.Millisecond),
		kgo.MetadataMinAge(100 * time.Millisecond),
	}
	if r.Isolation == "read_committed" {
		options = append(options, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	if r.Rack != "" {
		options = append(options, kgo.Rack(r.Rack))
	}
	switch a.Mechanism {
	case "PLAIN":
		options = append(options, kgo.SASL(plain.Auth{User: a.Username, Pass: a.Password}.AsMechanism()))
	case "SCRAM-SHA-512":
		options = append(options, kgo.SASL(scram.Auth{User: a.Username, Pass: a.Password}.AsSha512Mechanism()))
	}
	if a.Authority != "" {
		pem, err := os.ReadFile(a.Authority)
		if err != nil {
			return nil, err
		}
		authorities := x509.NewCertPool()
		authorities.AppendCertsFromPEM(pem)
		options = append(options, kgo.DialTLSConfig(&tls.Config{RootCAs: authorities}))
	}
	return append(options, placeOf(r)...), nil
}

// placeOf says where to begin, and whether as a member of a group.
func placeOf(r reading) []kgo.Opt {
	start := kgo.NewOffset().AtStart()
	switch r.Start {
	case "latest":
		start = kgo.NewOffset().AtEnd()
	case "timestamp":
		start = kgo.NewOffset().AfterMilli(r.SinceMs)
	}
	if r.Membership == "assigned" {
		partitions := map[int32]kgo.Offset{}
		for partition := range r.Ends {
			partitions[partition] = start
		}
		if r.Start == "hops" {
			partitions[0] = kgo.NewOffset().At(r.Hops[0])
		}
		assigned := map[string]map[int32]kgo.Offset{r.Topic: partitions}
		if r.Beside != "" {
			assigned[r.Beside] = partitions
		}
		return []kgo.Opt{kgo.ConsumePartitions(assigned)}
	}
	member := []kgo.Opt{
		kgo.ConsumerGroup(r.Group),
		kgo.ConsumeTopics(r.Topic),
		kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(start),
	}
	if r.Membership == "consumer" {
		member = append(member, kgo.ServerSideBalancer(), kgo.Balancers(kgo.RangeBalancer()))
	}
	return member
}

type reader struct {
	client *kgo.Client
	wanted reading
	out    *json.Encoder
}

func (r *reader) poll(ctx context.Context) ([]*kgo.Record, error) {
	fetches := r.client.PollFetches(ctx)
	if err := fetches.Err0(); err != nil {
		return nil, err
	}
	for _, failed := range fetches.Errors() {
		return nil, fmt.Errorf("%s-%d: %w", failed.Topic, failed.Partition, failed.Err)
	}
	return fetches.Records(), nil
}

func (r *reader) readToEnds(ctx context.Context) error {
	positions := map[int32]int64{}
	last := map[int32]*kgo.Record{}
	for r.isShort(positions) {
		records, err := r.poll(ctx)
		if err != nil {
			return fmt.Errorf("%w; positions %v of ends %v", err, positions, r.wanted.Ends)
		}
		for _, one := range records {
			if one.Topic != r.wanted.Topic {
				continue
			}
			positions[one.Partition] = one.Offset + 1
			if one.Offset < r.wanted.Ends[one.Partition] {
				last[one.Partition] = one
			}
			if err := r.print(one); err != nil {
				return err
			}
		}
	}
	if !r.wanted.Commits {
		return nil
	}
	ends := make([]*kgo.Record, 0, len(last))
	for _, one := range last {
		ends = append(ends, one)
	}
	return r.client.CommitRecords(ctx, ends...)
}

func (r *reader) isShort(positions map[int32]int64) bool {
	for partition, end := range r.wanted.Ends {
		if positions[partition] < end {
			return true
		}
	}
	return false
}

// readCount prints that many records from offset on; what was fetched for another place before is passed over.
func (r *reader) readCount(ctx context.Context, offset int64) error {
	for left := r.wanted.Count; left > 0; {
		records, err := r.poll(ctx)
		if err != nil {
			return fmt.Errorf("%w; %d records from %d on are missing", err, left, offset)
		}
		for _, one := range records {
			if left == 0 || one.Attrs.IsControl() {
				continue
			}
			if err := r.print(one); err != nil {
				return err
			}
			left--
		}
	}
	return nil
}

func (r *reader) readHops(ctx context.Context) error {
	// Offsets can be set of partitions that have returned something.
	if _, err := r.poll(ctx); err != nil {
		return err
	}
	for _, hop := range r.wanted.Hops {
		at := kgo.EpochOffset{Epoch: -1, Offset: hop}
		r.client.SetOffsets(map[string]map[int32]kgo.EpochOffset{r.wanted.Topic: {0: at}})
		if err := r.readCount(ctx, hop); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) print(one *kgo.Record) error {
	if one.Attrs.IsControl() {
		return nil
	}
	headers := make([]header, 0, len(one.Headers))
	for _, h := range one.Headers {
		headers = append(headers, header{Name: h.Key, Content: h.Value})
	}
	return r.out.Encode(line{
		Partition:   one.Partition,
		Offset:      one.Offset,
		TimestampMs: one.Timestamp.UnixMilli(),
		Key:         one.Key,
		Value:       one.Value,
		Headers:     headers,
	})
}
