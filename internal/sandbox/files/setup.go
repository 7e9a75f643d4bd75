package files

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/execagent/execagent/internal/pack"
	"github.com/execagent/execagent/sandbox"
)

// setup tells an fs helper what to serve. The helper reads it first, from descriptor 3.
type setup struct {
	policy *sandbox.Policy
	// hidden are the processes, besides the helper itself, whose directories in procfs the
	// helper hides.
	hidden []int
}

// maxSetup bounds an encoded setup, in bytes. It is far above the size of a policy that a
// client's request can hold.
const maxSetup = 16 << 20

func (s *setup) encode() ([]byte, error) {
	policy, err := s.policy.MarshalText()
	if err != nil {
		return nil, fmt.Errorf("encoding the policy: %w", err)
	}
	b := pack.AppendString(nil, string(policy))
	for _, pid := range s.hidden {
		b = binary.LittleEndian.AppendUint32(b, uint32(pid))
	}
	return b, nil
}

// decodeSetup is the reverse of encode. A policy that restricts no files is an
// error.
func decodeSetup(encoded []byte) (*setup, error) {
	d := newDecoder(encoded)
	s := setup{policy: new(sandbox.Policy)}
	policy := d.String(maxSetup)
	for d.More() {
		s.hidden = append(s.hidden, int(d.Uint32()))
	}
	if err := d.End(); err != nil {
		return nil, fmt.Errorf("decoding the setup: %w", err)
	}
	if err := s.policy.UnmarshalText([]byte(policy)); err != nil {
		return nil, err
	}
	if !s.policy.Confined {
		return nil, errors.New("decoding the setup: the policy restricts no files")
	}
	return &s, nil
}
