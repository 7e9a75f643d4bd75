package store

import (
	"context"
	"errors"
	"strings"
	"time"
)

// ErrUnauthorized refuses a credential without a word about what is wrong with it.
var ErrUnauthorized = errors.New("the credential is missing or not valid")

// Principal finds a principal by the id that tickets and presences name. found is
// false if the principal is unknown, revoked or expired.
func (st *Store) Principal(ctx context.Context, id string) (p *Principal, found bool, err error) {
	if key, ok := strings.CutPrefix(id, KeyPrefix); ok {
		if !validKeyID(key) {
			return nil, false, nil
		}
		record, _, found, err := get[keyRecord](ctx, st.keys, key)
		if err != nil || !found || record.Of != "" || !record.valid(time.Now()) {
			return nil, false, err
		}
		return record.principal(key), true, nil
	}
	if runtimeID, ok := strings.CutPrefix(id, AgentPrefix); ok {
		record, _, found, err := get[identityRecord](ctx, st.identities, identityKey(runtimeID))
		if err != nil || !found {
			return nil, false, err
		}
		return record.principal(), true, nil
	}
	return nil, false, nil
}
