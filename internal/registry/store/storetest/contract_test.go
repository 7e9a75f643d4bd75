package storetest

import "testing"

// TestContract: what a rendezvous relies on holds for a store in NATS and for a fake alike.
func TestContract(t *testing.T) {
	t.Parallel()
	t.Run("NATS", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		ns := NATS(t, dir, nil)
		defer func() { Stop(ns) }()
		url, at := ns.ClientURL(), ns.Addr()
		TestStore(t, At(t, url), At(t, url), func(away bool) {
			if away {
				Stop(ns)
			} else {
				ns = NATS(t, dir, at)
			}
		})
	})
	t.Run("fake", func(t *testing.T) {
		t.Parallel()
		fake := NewFake()
		other := *fake
		TestStore(t, fake, &other, fake.Away)
	})
}
