package store_test

import (
	"testing"

	"github.com/execagent/execagent/internal/registry/store/storetest"
)

// TestContract: what a rendezvous relies on holds for a store in NATS and for a fake alike.
func TestContract(t *testing.T) {
	t.Parallel()
	t.Run("NATS", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		ns := storetest.NATS(t, dir, nil)
		defer func() { storetest.Stop(ns) }()
		url, at := ns.ClientURL(), ns.Addr()
		storetest.TestStore(t, storetest.At(t, url), storetest.At(t, url), func(away bool) {
			if away {
				storetest.Stop(ns)
			} else {
				ns = storetest.NATS(t, dir, at)
			}
		})
	})
	t.Run("fake", func(t *testing.T) {
		t.Parallel()
		fake := storetest.NewFake()
		other := *fake
		storetest.TestStore(t, fake, &other, fake.Away)
	})
}
