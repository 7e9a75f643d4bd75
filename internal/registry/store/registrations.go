package store

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"time"

	"github.com/execagent/execagent/internal/relay/wire"
)

// ErrNewEnvironments says that a principal has registered too many environments that
// had no registration.
var ErrNewEnvironments = errors.New("too many new environments")

// Registration is the key that an executor has registered for an environment. As long as
// the key stays, the id stays.
type Registration struct {
	ID        string          `json:"id"`
	Key       *wire.PublicKey `json:"key"`
	Principal string          `json:"principal"`        // id of the principal that has registered last
	Direct    bool            `json:"direct,omitempty"` // for the direct transport: Key is nil
	Created   time.Time       `json:"created"`
}

// Registration returns the registration of an environment, even if its executor is
// offline.
func (st *Store) Registration(ctx context.Context, environmentID string) (reg Registration, found bool, err error) {
	reg, _, found, err = get[Registration](ctx, st.registrations, environmentID)
	return reg, found, err
}

// Register registers key for the environment. If key is already registered, the registration
// keeps its id. Otherwise a new registration replaces the old one, unless the executor of the
// old registration is online: then conflict is true. Register calls here with the id of the
// old registration, because this server may have that executor's websocket before the
// store has noted it. If the environment has no registration yet, Register calls allowed,
// perhaps more than once, and returns ErrNewEnvironments if allowed returns false.
func (st *Store) Register(ctx context.Context, environmentID string, key *wire.PublicKey, principal string, allowed func() bool, here func(registrationID string) bool) (reg Registration, conflict bool, err error) {
	same := func(old *Registration) bool { return old.Key != nil && old.Key.Equal(key) }
	return st.enroll(ctx, environmentID, Registration{Key: key, Principal: principal}, same, allowed, here)
}

// enroll replaces the registration of the environment by next. next gets the id of the old
// registration if same reports that both belong to the same executor.
func (st *Store) enroll(ctx context.Context, environmentID string, next Registration, same func(old *Registration) bool, allowed func() bool, here func(registrationID string) bool) (reg Registration, conflict bool, err error) {
	for range casRetries {
		old, revision, found, err := get[Registration](ctx, st.registrations, environmentID)
		if err != nil {
			return Registration{}, false, err
		}
		if !found && !allowed() {
			return Registration{}, false, ErrNewEnvironments
		}
		if found && same(&old) {
			next.ID, next.Created = old.ID, old.Created
		} else {
			// Both this server and the store are asked only after the registration was
			// read. If a websocket opens after that, SetOnline touches the
			// registration, and put finds a newer revision.
			if found && here(old.ID) {
				return Registration{}, true, nil
			}
			if _, online, err := st.Online(ctx, environmentID); err != nil || online {
				return Registration{}, online, err
			}
			next.ID, next.Created = newRegistrationID(), time.Now().UTC()
		}
		if _, ok, err := st.put(ctx, st.registrations, environmentID, next, revision); err != nil || ok {
			return next, false, err
		}
	}
	return Registration{}, false, unavailable("registering", errors.New("too many others change it at the same time"))
}

func newRegistrationID() string {
	var id [16]byte
	rand.Read(id[:])
	return "reg_" + hex.EncodeToString(id[:])
}
