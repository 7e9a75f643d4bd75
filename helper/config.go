package helper

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/execagent/execagent/sandbox"
)

// maxConfig bounds what a helper reads from its memfd, in bytes: more than
// the kernel takes of arguments and environment, and a policy.
const maxConfig = 32 << 20

// config is what the agent tells sandbox-init: a command, and what only the
// agent can see. It is not JSON, which cannot hold every path there is, and
// takes a quarter of a millisecond to decode in a process that is new.
type config struct {
	Command
	UID, GID int // of the agent, to be mapped onto themselves
	// Sockets are the bound pathname sockets of the agent's network
	// namespace; the init may be in a new one.
	Sockets []string
}

// encode is what decodeConfig takes.
func (c *config) encode() ([]byte, error) {
	policy, err := c.Policy.MarshalText()
	if err != nil {
		return nil, err
	}
	b := appendString(nil, string(policy))
	l := c.Backend
	b = append(b, flag(l.UserNS), flag(l.MountNS), flag(l.PIDNS), flag(l.IPCNS), flag(l.NetNS), flag(l.Seccomp))
	b = appendInt(b, l.Landlock)
	b = appendStrings(b, c.Argv)
	b = append(b, flag(c.Arg0 != nil))
	if c.Arg0 != nil {
		b = appendString(b, *c.Arg0)
	}
	b = appendStrings(b, c.Env)
	b = appendString(b, c.Dir)
	b = append(b, flag(c.TTY), flag(c.NewSession))
	b = binary.LittleEndian.AppendUint64(b, c.Limits.Processes)
	b = binary.LittleEndian.AppendUint64(b, c.Limits.AddressSpace)
	b = binary.LittleEndian.AppendUint64(b, c.Limits.CPUSeconds)
	b = appendInt(b, len(c.AgentPorts))
	for _, port := range c.AgentPorts {
		b = appendInt(b, int(port))
	}
	b = append(b, flag(c.Granted != nil))
	b = appendStrings(b, c.Granted)
	b = appendString(b, c.Argv0)
	b = appendInt(b, c.UID)
	b = appendInt(b, c.GID)
	return appendStrings(b, c.Sockets), nil
}

// decodeConfig is the reverse of config.encode.
func decodeConfig(encoded []byte) (*config, error) {
	d := decoder{rest: encoded}
	c := config{Command: Command{Policy: new(sandbox.Policy)}}
	if err := c.Policy.UnmarshalText([]byte(d.string(maxConfig))); err != nil {
		return nil, err
	}
	l := &c.Backend
	l.UserNS, l.MountNS, l.PIDNS, l.IPCNS, l.NetNS, l.Seccomp = d.bool(), d.bool(), d.bool(), d.bool(), d.bool(), d.bool()
	l.Landlock = d.int()
	c.Argv = d.strings()
	if d.bool() {
		c.Arg0 = new(d.string(maxConfig))
	}
	c.Env = d.strings()
	c.Dir = d.string(maxConfig)
	c.TTY, c.NewSession = d.bool(), d.bool()
	c.Limits = Limits{Processes: d.uint64(), AddressSpace: d.uint64(), CPUSeconds: d.uint64()}
	c.AgentPorts = d.ports()
	decided := d.bool()
	if c.Granted = d.strings(); decided && c.Granted == nil {
		c.Granted = []string{}
	}
	c.Argv0 = d.string(maxConfig)
	c.UID, c.GID = d.int(), d.int()
	c.Sockets = d.strings()
	if err := d.end(); err != nil {
		return nil, fmt.Errorf("decoding the command: %w", err)
	}
	return &c, nil
}

func appendInt(b []byte, n int) []byte { return binary.LittleEndian.AppendUint64(b, uint64(n)) }

func appendStrings(b []byte, list []string) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(list)))
	for _, s := range list {
		b = appendString(b, s)
	}
	return b
}

func (d *decoder) int() int { return int(d.uint64()) }

// list is the length of a list, each element of which takes at least the four
// bytes of a string.
func (d *decoder) list() uint32 {
	n := d.uint32()
	if uint64(n)*4 > uint64(len(d.rest)) {
		d.bad = true
		return 0
	}
	return n
}

func (d *decoder) ports() (ports []uint16) {
	for range d.int() {
		port := d.uint64()
		if d.bad = d.bad || port > math.MaxUint16; d.bad {
			return nil
		}
		ports = append(ports, uint16(port))
	}
	return ports
}

func (d *decoder) strings() []string {
	var list []string
	for range d.list() {
		list = append(list, d.string(maxConfig))
	}
	return list
}
