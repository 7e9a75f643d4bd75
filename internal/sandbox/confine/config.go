package confine

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/execagent/execagent/internal/pack"
	"github.com/execagent/execagent/sandbox"
)

// maxConfig bounds the bytes that an init reads from its memfd. It is more than
// the kernel's limit for arguments and environment of a command, with room for
// a policy.
const maxConfig = 32 << 20

// config is what the agent tells sandbox-init: a command, and facts that only
// the agent can see. It is not sent as JSON, which cannot hold a path that is
// not UTF-8, and takes a new process a quarter of a millisecond to decode.
type config struct {
	Command
	UID, GID int // of the agent; init maps them onto themselves
	// Sockets are the paths that UNIX sockets are bound to in the agent's
	// network namespace. Init may be in a new one, where it could not list
	// them.
	Sockets []string
}

// encode packs the config for decodeConfig.
func (c *config) encode() ([]byte, error) {
	policy, err := c.Policy.MarshalText()
	if err != nil {
		return nil, err
	}
	b := pack.AppendString(nil, string(policy))
	b = binary.LittleEndian.AppendUint32(b, uint32(c.Backend.Layers))
	b = pack.AppendInt(b, c.Backend.Landlock)
	b = append(b, byte(c.Backend.Level))
	b = pack.AppendStrings(b, c.Argv)
	b = append(b, pack.Bool(c.Arg0 != nil))
	if c.Arg0 != nil {
		b = pack.AppendString(b, *c.Arg0)
	}
	b = pack.AppendStrings(b, c.Env)
	b = pack.AppendString(b, c.Dir)
	b = append(b, pack.Bool(c.TTY), pack.Bool(c.NewSession), pack.Bool(c.ShellCodes), pack.Bool(c.TellsRefusals), pack.Bool(c.NotesRefusals))
	b = pack.AppendStrings(b, c.ChangesApart)
	b = binary.LittleEndian.AppendUint64(b, c.Limits.Processes)
	b = binary.LittleEndian.AppendUint64(b, c.Limits.AddressSpace)
	b = binary.LittleEndian.AppendUint64(b, c.Limits.CPUSeconds)
	b = binary.LittleEndian.AppendUint64(b, c.Limits.FileSize)
	b = appendPorts(appendPorts(b, c.AgentPorts), c.Gate)
	b = append(b, pack.Bool(c.Granted != nil))
	b = pack.AppendStrings(b, c.Granted)
	b = pack.AppendString(b, c.Shm)
	b = pack.AppendString(b, c.Argv0)
	b = pack.AppendString(b, string(c.Rules))
	b = pack.AppendString(b, c.Endpoint.Network)
	b = pack.AppendString(b, c.Endpoint.Target)
	b = pack.AppendInt(b, c.UID)
	b = pack.AppendInt(b, c.GID)
	return pack.AppendStrings(b, c.Sockets), nil
}

// decodeConfig is the reverse of config.encode.
func decodeConfig(encoded []byte) (*config, error) {
	d := pack.NewDecoder(encoded)
	c := config{Command: Command{Policy: new(sandbox.Policy)}}
	if err := c.Policy.UnmarshalText([]byte(d.String(maxConfig))); err != nil {
		return nil, err
	}
	layers := d.Uint32()
	d.Require(layers>>len(sandbox.AllLayers()) == 0) // we could not put on an unknown layer
	c.Backend = sandbox.Backend{Layers: sandbox.Layers(layers), Landlock: d.Int(), Level: sandbox.Level(d.Byte())}
	d.Require(c.Backend.Level <= sandbox.LevelMetadata)
	c.Argv = d.Strings(maxConfig)
	if d.Bool() {
		c.Arg0 = new(d.String(maxConfig))
	}
	c.Env = d.Strings(maxConfig)
	c.Dir = d.String(maxConfig)
	c.TTY, c.NewSession, c.ShellCodes, c.TellsRefusals, c.NotesRefusals = d.Bool(), d.Bool(), d.Bool(), d.Bool(), d.Bool()
	c.ChangesApart = d.Strings(maxConfig)
	c.Limits = Limits{Processes: d.Uint64(), AddressSpace: d.Uint64(), CPUSeconds: d.Uint64(), FileSize: d.Uint64()}
	c.AgentPorts, c.Gate = ports(&d), ports(&d)
	decided := d.Bool()
	if c.Granted = d.Strings(maxConfig); decided && c.Granted == nil {
		c.Granted = []string{}
	}
	c.Shm = d.String(maxConfig)
	c.Argv0 = d.String(maxConfig)
	if rules := d.String(maxConfig); rules != "" {
		c.Rules = []byte(rules)
	}
	c.Endpoint = Endpoint{Network: d.String(maxConfig), Target: d.String(maxConfig)}
	c.UID, c.GID = d.Int(), d.Int()
	c.Sockets = d.Strings(maxConfig)
	if err := d.End(); err != nil {
		return nil, fmt.Errorf("decoding the command: %w", err)
	}
	return &c, nil
}

// appendPorts appends a list of ports for ports.
func appendPorts(b []byte, list []uint16) []byte {
	b = pack.AppendInt(b, len(list))
	for _, port := range list {
		b = pack.AppendInt(b, int(port))
	}
	return b
}

// ports reads a list of ports.
func ports(d *pack.Decoder) (ports []uint16) {
	for range d.Int() {
		port := d.Uint64()
		if d.Require(port <= math.MaxUint16); !d.OK() {
			return nil
		}
		ports = append(ports, uint16(port))
	}
	return ports
}
