package target

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/execagent/execagent/internal/relay/wire"
)

// ListenURL returns the URL to listen on for the short forms that a command line takes:
// 127.0.0.1:7000, :7000 for all addresses of this machine (IPv4), localhost:7000 for its
// loopback address. It returns everything else as it is.
func ListenURL(address string) string { return short(address, "0.0.0.0", "127.0.0.1") }

// DialURL returns the URL to connect to for the same forms; :7000 is on this machine.
func DialURL(address string) string { return short(address, "127.0.0.1", "localhost") }

func short(address, all, local string) string {
	scheme := "ws://"
	rest, ok := strings.CutPrefix(address, scheme)
	if !ok {
		if rest, ok = strings.CutPrefix(address, "wss://"); ok {
			scheme = "wss://"
		}
	}
	if !ok && (strings.Contains(address, "/") || !strings.Contains(address, ":")) {
		return address // another kind of URL, or no URL
	}
	switch {
	case strings.HasPrefix(rest, ":"):
		rest = all + rest
	case strings.HasPrefix(rest, "localhost:"):
		rest = local + strings.TrimPrefix(rest, "localhost")
	}
	return scheme + rest
}

// CheckURL refuses a URL that no agent can have. It makes no connection.
func CheckURL(address string) error {
	u, err := url.Parse(DialURL(address))
	switch {
	case err != nil:
		return errors.New("--url is not a URL") // err is left out, because it quotes the address
	case u.Scheme == "unix" && u.Host == "" && u.User == nil && u.Path != "":
		return nil
	case strings.HasPrefix(address, "/"):
		return fmt.Errorf("--url %.100s is not a URL: for a UNIX socket write unix://%[1]s", address)
	case (u.Scheme == "http" || u.Scheme == "https") && u.User == nil && u.Host != "":
		return fmt.Errorf("--url %.100s is not ws://HOST:PORT, HOST:PORT, wss:// or unix:///PATH: write ws%.100s", address, strings.TrimPrefix(address, "http"))
	case u.Scheme != "ws" && u.Scheme != "wss" || u.Host == "":
		return fmt.Errorf("--url %.100s is not ws://HOST:PORT, HOST:PORT, wss:// or unix:///PATH", u.Redacted())
	case u.User != nil:
		return errors.New("--url holds credentials: put them into a token file")
	}
	return nil
}

// CheckEnvironment refuses an invalid id of an environment; "" stands for no environment.
func CheckEnvironment(id string) error {
	if id != "" && !wire.ValidEnvironmentID(id) {
		return fmt.Errorf("--environment-id %.100q is not 1 to 256 of A-Z, a-z, 0-9, _ and -", id)
	}
	return nil
}
