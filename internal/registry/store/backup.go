package store

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// A backup consists of lines of JSON: backupHead, a backupValue for each value, and backupTail.
// Without backupTail the backup was cut short. A backup has the values that must outlive a
// registry. Presences and the times of recent assertions are not among them.
const (
	backupFormat  = "execagent-registry-backup"
	backupVersion = 1
	// maxBackupLine bounds a line: a value of maxValueSize in base64, and its names.
	maxBackupLine = 4*maxValueSize/3 + 4096
)

type backupHead struct {
	Format  string    `json:"format"`
	Version int       `json:"version"`
	Created time.Time `json:"created"`
}

type backupValue struct {
	Bucket string `json:"bucket"`
	Key    string `json:"key"`
	Value  []byte `json:"value"`
}

type backupTail struct {
	Values int `json:"values"` // number of values
}

// lasting returns the buckets of a backup, with their names in the backup. The keys are last,
// because a registry without keys lets nobody in while it is being restored.
func (st *Store) lasting() []struct {
	name string
	kv   jetstream.KeyValue
} {
	return []struct {
		name string
		kv   jetstream.KeyValue
	}{
		{"secrets", st.secrets}, {"registrations", st.registrations}, {"usage", st.usages}, {"identities", st.identities}, {"keys", st.keys},
	}
}

// Backup writes all values that must outlive the registry, and returns their number. The registry
// may be running. A backup has the shared key, so whoever has the backup can make the registry's
// signed URLs. It has no API key.
func (st *Store) Backup(ctx context.Context, w io.Writer) (values int, err error) {
	buffered := bufio.NewWriter(w)
	lines := json.NewEncoder(buffered)
	if err := lines.Encode(backupHead{backupFormat, backupVersion, time.Now().UTC().Truncate(time.Second)}); err != nil {
		return 0, err
	}
	for _, bucket := range st.lasting() {
		err := each(ctx, bucket.kv, func(entry jetstream.KeyValueEntry) error {
			values++
			return lines.Encode(backupValue{bucket.name, entry.Key(), entry.Value()})
		})
		if err != nil {
			return values, err
		}
	}
	if err := lines.Encode(backupTail{values}); err != nil {
		return values, err
	}
	return values, buffered.Flush()
}

// ErrNotEmpty says that a store has values already.
var ErrNotEmpty = errors.New("the store is not empty")

// Backup is a backup that was read to its end.
type Backup struct {
	values map[string][]backupValue // by the names of the buckets
}

// ReadBackup reads a backup that [Store.Backup] has written. It needs no store, so that a caller
// need not make a store for a file that is no backup.
func ReadBackup(r io.Reader) (*Backup, error) {
	b := &Backup{map[string][]backupValue{}}
	for _, bucket := range new(Store).lasting() {
		b.values[bucket.name] = nil
	}
	if err := readBackup(r, b.values); err != nil {
		return nil, err
	}
	return b, nil
}

// Restore writes the values of a backup into an empty store. It returns ErrNotEmpty for any other
// store, for example if a registry that runs on the store has made its shared key already. After
// another error the store may have a part of the values.
func (st *Store) Restore(ctx context.Context, b *Backup) (values int, err error) {
	for _, bucket := range st.lasting() {
		there, err := names(ctx, bucket.kv)
		if err != nil {
			return 0, err
		}
		if len(there) > 0 {
			return 0, ErrNotEmpty
		}
	}
	for _, bucket := range st.lasting() {
		for _, value := range b.values[bucket.name] {
			if err := st.restoreValue(ctx, bucket.kv, value); err != nil {
				return values, err
			}
			values++
		}
	}
	return values, nil
}

func (st *Store) restoreValue(ctx context.Context, kv jetstream.KeyValue, value backupValue) error {
	ctx, cancel := context.WithTimeout(ctx, st.timeout)
	defer cancel()
	_, err := st.answered(ctx, func() (uint64, error) { return kv.Create(ctx, value.Key, value.Value) })
	if errors.Is(err, jetstream.ErrKeyExists) {
		return ErrNotEmpty
	}
	return unavailable("writing "+kv.Bucket(), err)
}

// readBackup reads the values into known, which has the names of the buckets.
func readBackup(r io.Reader, known map[string][]backupValue) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxBackupLine)
	var head backupHead
	if !lines.Scan() || json.Unmarshal(lines.Bytes(), &head) != nil || head.Format != backupFormat {
		return errors.Join(errors.New("this is not a backup of a registry"), lines.Err())
	}
	if head.Version != backupVersion {
		return fmt.Errorf("the backup has version %d, but this program knows only version %d", head.Version, backupVersion)
	}
	for n := 0; lines.Scan(); n++ {
		var line struct {
			backupValue
			Values *int `json:"values"`
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return fmt.Errorf("line %d of the backup: %w", n+2, err)
		}
		if line.Values != nil {
			if *line.Values != n || lines.Scan() {
				return fmt.Errorf("the backup does not have the %d values that it announces", *line.Values)
			}
			return lines.Err()
		}
		if _, ok := known[line.Bucket]; !ok {
			return fmt.Errorf("line %d of the backup: bucket %.32q is not known", n+2, line.Bucket)
		}
		known[line.Bucket] = append(known[line.Bucket], line.backupValue)
	}
	return errors.Join(errors.New("the backup was cut short"), lines.Err())
}
