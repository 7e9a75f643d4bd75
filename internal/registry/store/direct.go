package store

import (
	"context"
	"crypto/sha256"
	"time"

	"github.com/execagent/execagent/internal/registry/ticket"
)

// RegisterDirect registers an executor of the direct transport. Such an executor has no key. It is
// known by its principal, and keeps its registration as long as the same principal registers. While
// the executor has websockets here, a request of its principal gets the registration only if
// former is the id of the registration. Otherwise the request conflicts, like a request of another
// principal while the executor is online: then conflict is true. allowed and here are as with
// Register.
func (st *Store) RegisterDirect(ctx context.Context, environmentID, former, principal string, allowed func() bool, here func(registrationID string) bool) (reg Registration, conflict bool, err error) {
	same := func(old *Registration) bool {
		return old.Direct && old.Principal == principal && (former == old.ID || !here(old.ID))
	}
	return st.enroll(ctx, environmentID, Registration{Principal: principal, Direct: true}, same, allowed, here)
}

// Signing returns the principal of the key with an id, and the hashes of the key's valid texts. A
// client that signs a request with a secret made from one of the hashes is the holder of the key.
// Signing itself proves nothing. The error is ErrUnauthorized for a key that is not valid.
func (st *Store) Signing(ctx context.Context, keyID string) (p *Principal, hashes [][]byte, err error) {
	if !validKeyID(keyID) {
		return nil, nil, ErrUnauthorized
	}
	record, _, found, err := get[keyRecord](ctx, st.keys, keyID)
	if err != nil {
		return nil, nil, err
	}
	now := time.Now()
	if !found || record.Of != "" || !record.valid(now) {
		return nil, nil, ErrUnauthorized
	}
	hashes = [][]byte{record.Hash}
	if now.Before(record.FormerUntil) {
		hashes = append(hashes, record.Former)
	}
	return record.principal(keyID), hashes, nil
}

// Signed notes that a key was used to sign a request.
func (st *Store) Signed(keyID string) { st.used(keyID) }

// AccessSecret returns the secret with which the holder of a key signs requests as AWS does. The
// secret is derived from the id and the text of the key. It is valid as long as the text, and is
// not stored.
func (st *Store) AccessSecret(ctx context.Context, keyID, text string) (string, error) {
	shared, err := st.SharedKey(ctx)
	if err != nil {
		return "", err
	}
	defer clear(shared)
	hash := sha256.Sum256([]byte(text))
	return ticket.NewSigner(shared).AccessSecret(keyID, hash[:]), nil
}
