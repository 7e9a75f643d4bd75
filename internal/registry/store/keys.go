package store

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/execagent/execagent/internal/registry/ticket"
)

// An API key is keyPrefix and the base64url of random bytes. Its plain SHA-256 can be
// stored. A slow hash would only slow down guesses, and nobody can guess 32 random bytes.
const (
	keyPrefix = "xa_"
	keySize   = 32 // random bytes
	keyIDSize = 8  // bytes of the hash that are the key's id
)

// maxLabel bounds the label of a key, in bytes.
const maxLabel = 256

// ErrNotFound says that there is no such key or identity.
var ErrNotFound = errors.New("not found")

// Key is an API key as it is listed, without its text. Only the client that was given the key
// has the text.
type Key struct {
	ID           string    `json:"id"`
	Label        string    `json:"label,omitempty"`
	Role         string    `json:"role"`         // executor or harness
	Environments string    `json:"environments"` // pattern; * stands for any characters
	Created      time.Time `json:"created"`
	Expires      time.Time `json:"expires,omitzero"` // zero: never
	Revoked      time.Time `json:"revoked,omitzero"` // zero: not
	Limits       Limits    `json:"limits,omitzero"`
	Rotated      time.Time `json:"rotated,omitzero"`      // when its text was last replaced; zero: never
	FormerUntil  time.Time `json:"former_until,omitzero"` // until when the former text is valid
	LastUsed     time.Time `json:"last_used,omitzero"`    // up to an hour before the last use; zero: not known
}

// keyRecord is a key in the store. The id of the key is the start of the hash of its first
// text. Each later text has a second record, whose name is the start of the hash of that text.
// The second record has the id of the key and grants no rights. Processes of versions without
// second records refuse the new text and the former text.
type keyRecord struct {
	Key
	Hash   []byte `json:"sha256"`                  // of the text
	Former []byte `json:"former_sha256,omitempty"` // of the former text
	Of     string `json:"of,omitempty"`            // the id of the key; only in a record for a later text
}

// accepts reports whether a text with the hash is valid for the key.
func (k *keyRecord) accepts(hash []byte, now time.Time) bool {
	return subtle.ConstantTimeCompare(k.Hash, hash) == 1 ||
		now.Before(k.FormerUntil) && subtle.ConstantTimeCompare(k.Former, hash) == 1
}

// newText makes a text for a key. id is the name of the record of this text.
func newText() (text string, hash []byte, id string) {
	var secret [keySize]byte
	rand.Read(secret[:])
	text = keyPrefix + base64.RawURLEncoding.EncodeToString(secret[:])
	clear(secret[:])
	sum := sha256.Sum256([]byte(text))
	return text, sum[:], textID(sum[:])
}

// textID returns the name of the record for the text with a hash.
func textID(hash []byte) string { return hex.EncodeToString(hash[:keyIDSize]) }

func (k *keyRecord) valid(now time.Time) bool {
	return k.Revoked.IsZero() && (k.Expires.IsZero() || now.Before(k.Expires))
}

func (k *keyRecord) principal(id string) *Principal {
	return &Principal{ID: KeyPrefix + id, Role: ticket.Role(k.Role), Environments: k.Environments, Limits: k.Limits}
}

// CreateKey stores a new key with the label, role, environments, expiry and limits of
// k. text is the key itself, which the store does not keep. The error names the invalid
// field of k, or wraps ErrUnavailable.
func (st *Store) CreateKey(ctx context.Context, k Key) (text string, created Key, err error) {
	if k.Role != string(ticket.Executor) && k.Role != string(ticket.Harness) {
		return "", Key{}, fmt.Errorf("role %.32q is neither executor nor harness", k.Role)
	}
	if err := CheckPattern(k.Environments); err != nil {
		return "", Key{}, err
	}
	if len(k.Label) > maxLabel {
		return "", Key{}, fmt.Errorf("label is longer than %d bytes", maxLabel)
	}
	for range casRetries {
		text, hash, id := newText()
		k = Key{
			ID: id, Label: k.Label, Role: k.Role, Environments: k.Environments, Expires: k.Expires, Limits: k.Limits,
			Created: time.Now().UTC().Truncate(time.Second),
		}
		if _, ok, err := st.put(ctx, st.keys, k.ID, keyRecord{Key: k, Hash: hash}, 0); err != nil || ok {
			return text, k, err
		}
	}
	return "", Key{}, errors.New("making a key with an id of its own")
}

// Keys returns all keys, including revoked and expired keys, the oldest first.
func (st *Store) Keys(ctx context.Context) ([]Key, error) {
	records, err := all[keyRecord](ctx, st.keys)
	if err != nil {
		return nil, err
	}
	used, err := all[time.Time](ctx, st.usages)
	if err != nil {
		return nil, err
	}
	keys := make([]Key, 0, len(records))
	for _, record := range records {
		if record.Of == "" {
			record.LastUsed = used[record.ID]
			keys = append(keys, record.Key)
		}
	}
	slices.SortFunc(keys, func(a, b Key) int {
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return keys, nil
}

// RevokeKey makes a key invalid from now on, for all processes. A key that is already
// revoked stays unchanged. The error is ErrNotFound for an unknown id.
func (st *Store) RevokeKey(ctx context.Context, id string) (Key, error) {
	for range casRetries {
		record, revision, err := st.key(ctx, id)
		if err != nil {
			return Key{}, err
		}
		if !record.Revoked.IsZero() {
			return record.Key, nil
		}
		record.Revoked = time.Now().UTC().Truncate(time.Second)
		if _, ok, err := st.put(ctx, st.keys, id, record, revision); err != nil || ok {
			return record.Key, err
		}
	}
	return Key{}, unavailable("revoking the key", errors.New("too many others change it at the same time"))
}

// key reads a key. The error is ErrNotFound for an unknown id.
func (st *Store) key(ctx context.Context, id string) (record keyRecord, revision uint64, err error) {
	if !validKeyID(id) {
		return keyRecord{}, 0, ErrNotFound
	}
	record, revision, found, err := get[keyRecord](ctx, st.keys, id)
	if err == nil && (!found || record.Of != "") {
		err = ErrNotFound
	}
	return record, revision, err
}

// errNotValid says that a key is revoked or has expired.
var errNotValid = errors.New("it is revoked or has expired")

// RotateKey replaces the text of a key. The key keeps its id and all other fields. The former
// text stays valid for grace, if grace is not zero. An older text becomes invalid. The error
// is ErrNotFound for an unknown id, and errNotValid for a key that is not valid.
func (st *Store) RotateKey(ctx context.Context, id string, grace time.Duration) (text string, rotated Key, err error) {
	var hash []byte
	for at, ok := "", false; !ok; {
		// The record grants no rights without its key, so a record that stays behind does no
		// harm.
		text, hash, at = newText()
		if _, ok, err = st.put(ctx, st.keys, at, keyRecord{Hash: hash, Of: id}, 0); err != nil {
			return "", Key{}, err
		}
	}
	for range casRetries {
		record, revision, err := st.key(ctx, id)
		now := time.Now().UTC().Truncate(time.Second)
		if err == nil && !record.valid(now) {
			err = errNotValid
		}
		if err != nil {
			st.forgetText(ctx, id, hash)
			return "", Key{}, err
		}
		gone := [][]byte{record.Former}
		record.Former, record.FormerUntil = record.Hash, now.Add(grace)
		if grace == 0 {
			gone = append(gone, record.Former)
			record.Former, record.FormerUntil = nil, time.Time{}
		}
		record.Hash, record.Rotated = hash, now
		switch _, ok, err := st.put(ctx, st.keys, id, record, revision); {
		case err != nil:
			return "", Key{}, err
		case ok:
			st.forgetText(ctx, id, gone...)
			return text, record.Key, nil
		}
	}
	return "", Key{}, unavailable("rotating the key", errors.New("too many others change it at the same time"))
}

// forgetText removes the records of later texts of a key. It ignores errors, because these
// records grant no rights.
func (st *Store) forgetText(ctx context.Context, id string, hashes ...[]byte) {
	for _, hash := range hashes {
		if len(hash) > 0 && textID(hash) != id {
			_ = st.keys.Purge(ctx, textID(hash))
		}
	}
}

// AuthenticateKey returns the principal of the key with the text, or ErrUnauthorized. It asks
// the store each time, so that a revocation takes effect at once everywhere.
func (st *Store) AuthenticateKey(ctx context.Context, text string) (*Principal, error) {
	if len(text) != len(keyPrefix)+base64.RawURLEncoding.EncodedLen(keySize) || !strings.HasPrefix(text, keyPrefix) {
		return nil, ErrUnauthorized
	}
	hash, now := sha256.Sum256([]byte(text)), time.Now()
	id := textID(hash[:])
	record, _, found, err := get[keyRecord](ctx, st.keys, id)
	if err == nil && found && record.Of != "" && record.accepts(hash[:], now) {
		id = record.Of
		record, _, found, err = get[keyRecord](ctx, st.keys, id)
	}
	if err != nil {
		return nil, err
	}
	if !found || record.Of != "" || !record.accepts(hash[:], now) || !record.valid(now) {
		return nil, ErrUnauthorized
	}
	st.used(id)
	return record.principal(id), nil
}

func validKeyID(id string) bool {
	_, err := hex.DecodeString(id)
	return err == nil && len(id) == 2*keyIDSize && strings.ToLower(id) == id
}
