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

	"github.com/execagent/execagent/registry/principal"
	"github.com/execagent/execagent/registry/ticket"
)

// An API key is keyPrefix and the base64url of random bytes. Its plain SHA-256 can be
// stored: nobody can guess 32 random bytes, so a slow hash, which slows down guesses,
// would bring nothing.
const (
	keyPrefix = "xa_"
	keySize   = 32 // random bytes
	keyIDSize = 8  // bytes of the hash that are its id
)

// maxLabel bounds the label of a key, in bytes.
const maxLabel = 256

// ErrNotFound says that there is no such key or identity.
var ErrNotFound = errors.New("not found")

// Key is an API key as it is listed, without its text: only the one whom it was given to
// has that.
type Key struct {
	ID           string           `json:"id"`
	Label        string           `json:"label,omitempty"`
	Role         string           `json:"role"`         // executor or harness
	Environments string           `json:"environments"` // pattern; * stands for any characters
	Created      time.Time        `json:"created"`
	Expires      time.Time        `json:"expires,omitzero"` // zero: never
	Revoked      time.Time        `json:"revoked,omitzero"` // zero: not
	Limits       principal.Limits `json:"limits,omitzero"`
}

// keyRecord is a key in the store. Its id there is the start of its hash.
type keyRecord struct {
	Key
	Hash []byte `json:"sha256"`
}

func (k *keyRecord) valid(now time.Time) bool {
	return k.Revoked.IsZero() && (k.Expires.IsZero() || now.Before(k.Expires))
}

func (k *keyRecord) principal(id string) *principal.Principal {
	return &principal.Principal{ID: principal.KeyPrefix + id, Role: ticket.Role(k.Role), Environments: k.Environments, Limits: k.Limits}
}

// CreateKey stores a new key with the label, role, environments, expiry and limits of
// k. text is the key itself, which the store does not keep. The error says what of k is
// not valid, or wraps ErrUnavailable.
func (st *Store) CreateKey(ctx context.Context, k Key) (text string, created Key, err error) {
	if k.Role != string(ticket.Executor) && k.Role != string(ticket.Harness) {
		return "", Key{}, fmt.Errorf("role %.32q is neither executor nor harness", k.Role)
	}
	if err := principal.CheckPattern(k.Environments); err != nil {
		return "", Key{}, err
	}
	if len(k.Label) > maxLabel {
		return "", Key{}, fmt.Errorf("label is longer than %d bytes", maxLabel)
	}
	for range casRetries {
		var secret [keySize]byte
		rand.Read(secret[:])
		text := keyPrefix + base64.RawURLEncoding.EncodeToString(secret[:])
		clear(secret[:])
		hash := sha256.Sum256([]byte(text))
		k.ID = hex.EncodeToString(hash[:keyIDSize])
		k.Created, k.Revoked = time.Now().UTC().Truncate(time.Second), time.Time{}
		if _, ok, err := st.put(ctx, st.keys, k.ID, keyRecord{Key: k, Hash: hash[:]}, 0); err != nil || ok {
			return text, k, err
		}
	}
	return "", Key{}, errors.New("making a key with an id of its own")
}

// Keys returns all keys, also those that are revoked or have expired, the oldest
// first.
func (st *Store) Keys(ctx context.Context) ([]Key, error) {
	records, err := all[keyRecord](ctx, st.keys)
	if err != nil {
		return nil, err
	}
	keys := make([]Key, 0, len(records))
	for _, record := range records {
		keys = append(keys, record.Key)
	}
	slices.SortFunc(keys, func(a, b Key) int {
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return keys, nil
}

// RevokeKey makes a key invalid from now on, for all processes. A key that is revoked
// already stays as it is. The error is ErrNotFound for an unknown id.
func (st *Store) RevokeKey(ctx context.Context, id string) (Key, error) {
	if !validKeyID(id) {
		return Key{}, ErrNotFound
	}
	for range casRetries {
		record, revision, found, err := get[keyRecord](ctx, st.keys, id)
		if err != nil {
			return Key{}, err
		}
		if !found {
			return Key{}, ErrNotFound
		}
		if !record.Revoked.IsZero() {
			return record.Key, nil
		}
		record.Revoked = time.Now().UTC().Truncate(time.Second)
		if _, ok, err := st.put(ctx, st.keys, id, record, revision); err != nil || ok {
			return record.Key, err
		}
	}
	return Key{}, unavailable("revoking the key", errors.New("too many others do the same"))
}

// AuthenticateKey finds whose key the text is, or returns ErrUnauthorized. It asks the
// store each time, so that a revocation counts at once everywhere.
func (st *Store) AuthenticateKey(ctx context.Context, text string) (*principal.Principal, error) {
	if len(text) != len(keyPrefix)+base64.RawURLEncoding.EncodedLen(keySize) || !strings.HasPrefix(text, keyPrefix) {
		return nil, ErrUnauthorized
	}
	hash := sha256.Sum256([]byte(text))
	id := hex.EncodeToString(hash[:keyIDSize])
	record, _, found, err := get[keyRecord](ctx, st.keys, id)
	if err != nil {
		return nil, err
	}
	if !found || subtle.ConstantTimeCompare(record.Hash, hash[:]) != 1 || !record.valid(time.Now()) {
		return nil, ErrUnauthorized
	}
	return record.principal(id), nil
}

func validKeyID(id string) bool {
	_, err := hex.DecodeString(id)
	return err == nil && len(id) == 2*keyIDSize && strings.ToLower(id) == id
}
