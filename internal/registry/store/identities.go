package store

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/strictjson"
)

// maxRuntimeID bounds the runtime id of an identity, in bytes.
const maxRuntimeID = 256

// replayWindow is how much older than the newest assertion of its task an assertion may
// be, because requests overtake each other. So an assertion can be repeated within this time.
// A rule against such repeats would refuse honest requests, too: assertions have whole
// seconds and deterministic signatures, so two assertions of one second have the same bytes.
const replayWindow = 5 * time.Second

// Identity is an agent that proves its runtime id by signing with its own key (remote.md
// 12.6). Its role is always executor.
type Identity struct {
	RuntimeID    string            `json:"runtime_id"`
	PublicKey    ed25519.PublicKey `json:"public_key"`
	Environments string            `json:"environments"` // pattern; * stands for any characters
	Created      time.Time         `json:"created"`
	Limits       Limits            `json:"limits,omitzero"`
}

// identityRecord is an identity in the store.
type identityRecord struct{ Identity }

func (i *identityRecord) principal() *Principal {
	return &Principal{ID: AgentPrefix + i.RuntimeID, Role: ticket.Executor, Environments: i.Environments, Limits: i.Limits}
}

// identityKey encodes a runtime id for the store, because keys of the store allow few
// characters.
func identityKey(runtimeID string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(runtimeID))
}

// runtimeID is the reverse of identityKey. It returns "" for a key that identityKey has not
// made.
func runtimeID(key string) string {
	text, err := strictjson.RawURLBase64.Decode(key)
	if err != nil {
		return ""
	}
	return string(text)
}

func checkRuntimeID(id string) error {
	if id == "" || len(id) > maxRuntimeID {
		return fmt.Errorf("runtime id is empty or longer than %d bytes", maxRuntimeID)
	}
	for _, c := range []byte(id) {
		if c <= ' ' || c > '~' {
			return errors.New("runtime id may hold only visible ASCII characters")
		}
	}
	return nil
}

// AddIdentity stores an identity and sets Created. It replaces an identity with the same
// runtime id. The error names the invalid field of i, or wraps ErrUnavailable.
func (st *Store) AddIdentity(ctx context.Context, i Identity) error {
	if err := checkRuntimeID(i.RuntimeID); err != nil {
		return err
	}
	if err := CheckPattern(i.Environments); err != nil {
		return err
	}
	if len(i.PublicKey) != ed25519.PublicKeySize {
		return fmt.Errorf("public key is %d bytes, not %d", len(i.PublicKey), ed25519.PublicKeySize)
	}
	i.Created = time.Now().UTC().Truncate(time.Second)
	key := identityKey(i.RuntimeID)
	for range casRetries {
		_, revision, _, err := get[identityRecord](ctx, st.identities, key)
		if err != nil {
			return err
		}
		if _, ok, err := st.put(ctx, st.identities, key, identityRecord{i}, revision); err != nil || ok {
			return err
		}
	}
	return unavailable("adding the identity", errors.New("too many others change it at the same time"))
}

// Identities returns all identities, sorted by runtime id.
func (st *Store) Identities(ctx context.Context) ([]Identity, error) {
	records, err := all[identityRecord](ctx, st.identities)
	if err != nil {
		return nil, err
	}
	identities := make([]Identity, 0, len(records))
	for _, record := range records {
		identities = append(identities, record.Identity)
	}
	slices.SortFunc(identities, func(a, b Identity) int { return strings.Compare(a.RuntimeID, b.RuntimeID) })
	return identities, nil
}

// RemoveIdentity makes an identity invalid for all processes. The error is ErrNotFound
// for an unknown runtime id.
func (st *Store) RemoveIdentity(ctx context.Context, runtimeID string) error {
	if checkRuntimeID(runtimeID) != nil {
		return ErrNotFound
	}
	key := identityKey(runtimeID)
	_, _, found, err := get[identityRecord](ctx, st.identities, key)
	if err != nil {
		return err
	}
	if !found {
		return ErrNotFound
	}
	if err := st.failing(); err != nil {
		return err
	}
	if err := st.identities.Purge(ctx, key, jetstream.PurgeTTL(markerTTL)); err != nil {
		return unavailable("removing the identity", st.writeFailed(err))
	}
	return nil
}

// AuthenticateAgent checks the signature of an assertion, and that its time differs from now
// by skew at most. It returns ErrUnauthorized if a check fails. RefuseReplay then checks
// whether the assertion was used before.
func (st *Store) AuthenticateAgent(ctx context.Context, a *auth.Assertion, skew time.Duration) (*Principal, error) {
	if checkRuntimeID(a.RuntimeID) != nil {
		return nil, ErrUnauthorized
	}
	record, _, found, err := get[identityRecord](ctx, st.identities, identityKey(a.RuntimeID))
	if err != nil {
		return nil, err
	}
	if !found || a.Verify(record.PublicKey) != nil {
		return nil, ErrUnauthorized
	}
	if time.Since(a.Time).Abs() > skew {
		return nil, ErrUnauthorized
	}
	return record.principal(), nil
}

// RefuseReplay returns ErrUnauthorized for an assertion that is more than 5 s older than the
// newest assertion of the same task in the store. Call it after AuthenticateAgent, because
// strangers must not be able to write to the store.
func (st *Store) RefuseReplay(ctx context.Context, a *auth.Assertion) error {
	replayed, err := st.replayed(ctx, a.RuntimeID, a.TaskID, a.Time)
	if err == nil && replayed {
		err = ErrUnauthorized
	}
	return err
}

// replayed reports whether the newest timestamp of a task is later than at by more than
// replayWindow, and stores at if it is the newest. Because timestamps are whole seconds, a
// task costs at most one write per second for all processes together.
func (st *Store) replayed(ctx context.Context, runtimeID, taskID string, at time.Time) (bool, error) {
	hash := sha256.New()
	for _, name := range []string{runtimeID, taskID} {
		hash.Write(binary.BigEndian.AppendUint64(nil, uint64(len(name)))) // the length separates the names
		hash.Write([]byte(name))
	}
	key := hex.EncodeToString(hash.Sum(nil)[:16])
	for range casRetries {
		newest, revision, found, err := get[int64](ctx, st.replay, key)
		if err != nil {
			return false, err
		}
		if found && at.Unix() <= newest {
			return at.Unix() < newest-int64(replayWindow/time.Second), nil
		}
		if _, ok, err := st.put(ctx, st.replay, key, at.Unix(), revision); err != nil || ok {
			return false, err
		}
	}
	return false, unavailable("remembering the assertion", errors.New("too many others change it at the same time"))
}
