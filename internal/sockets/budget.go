package sockets

import "github.com/execagent/execagent/internal/share"

const (
	// DefaultBudget bounds the bytes that all sockets of an agent keep together.
	DefaultBudget = 64 << 20
	// pieceSize is the number of bytes that is taken from the budget at a time. It also bounds the
	// bytes of one Data.
	pieceSize = 64 << 10
	// maxOpen bounds the sockets of all sets that share a [Budget], because each socket takes a
	// descriptor, and may keep 8 KiB even if the budget is used up.
	maxOpen = 2048
)

// A Budget bounds the bytes that the sockets of several sets keep, and the number of these sockets.
type Budget struct{ Bytes, Sockets share.Pool }

// NewBudget returns a budget of that many bytes.
func NewBudget(bytes int64) *Budget {
	return &Budget{share.Pool{Max: bytes}, share.Pool{What: "sockets", Max: maxOpen}}
}

// enter counts one more socket, if the owner may have one more.
func (b *Budget) enter(owner string) error {
	if err := b.Sockets.Take(owner, 1); err != nil {
		return err
	}
	err := share.Descriptors().Take(owner, 1)
	if err != nil {
		b.Sockets.Give(owner, 1)
	}
	return err
}

func (b *Budget) leave(owner string) {
	share.Descriptors().Give(owner, 1)
	b.Sockets.Give(owner, 1)
}

// Open returns the number of sockets that are open or being connected.
func (b *Budget) Open() int { return int(b.Sockets.Used()) }
