package main

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net/netip"
	"strings"

	"github.com/execagent/execagent/internal/secretfile"
	"github.com/execagent/execagent/internal/tlsconfig"
)

// listenerTLS name the certificates of a listening server and of its clients.
type listenerTLS struct {
	TLSCert     string `env:"AGENT_TLS_CERT" name:"tls-cert" group:"auth" type:"path" placeholder:"FILE" help:"Certificate of this agent and its intermediate certificates (PEM): listen with TLS, at wss://IP:PORT. The file is read again when it changes."`
	TLSKey      string `env:"AGENT_TLS_KEY" name:"tls-key" group:"auth" type:"path" placeholder:"FILE" help:"Private key of --tls-cert (PEM). To hide it from confined commands, renew the file in place, or keep it in a folder of its own where no command may write."`
	TLSClientCA string `env:"AGENT_TLS_CLIENT_CA" name:"tls-client-ca" group:"auth" type:"path" placeholder:"FILE" help:"Certificate authorities (PEM): only clients with a certificate from one of them may connect. Use it instead of --ws-auth, or together with it."`
}

// check refuses TLS without a listener, or without one of its files. listen is the value of the
// flag, or "" if the flag was not given.
func (f *listenerTLS) check(listen string, remote bool) error {
	switch {
	case *f == listenerTLS{}:
		if strings.HasPrefix(listen, "wss://") {
			return errors.New("--listen wss:// needs --tls-cert and --tls-key")
		}
		return nil
	case f.TLSCert == "" && f.TLSKey == "":
		return errors.New("--tls-client-ca needs --tls-cert and --tls-key")
	case f.TLSCert == "" || f.TLSKey == "":
		return errors.New("--tls-cert and --tls-key must be given together")
	case remote:
		return errors.New("--tls-cert cannot be used in remote mode, because its streams are encrypted end to end")
	case strings.HasPrefix(listen, "unix:") || strings.HasPrefix(listen, "stdio"):
		return errors.New("--tls-cert needs a port to listen on")
	case strings.HasPrefix(listen, "ws://"):
		return errors.New("--listen ws:// has no TLS: with --tls-cert write wss://IP:PORT or IP:PORT")
	}
	return nil
}

// secure replaces ws:// by wss:// in a URL, if there is a certificate.
func (f *listenerTLS) secure(listen string) string {
	if rest, ok := strings.CutPrefix(listen, "ws://"); ok && f.TLSCert != "" {
		return "wss://" + rest
	}
	return listen
}

// config returns the configuration of the listener, or nil if there is no certificate.
func (f *listenerTLS) config(log *slog.Logger) (*tls.Config, error) {
	if f.TLSCert == "" {
		return nil, nil
	}
	// A user who can change one of these files can pose as the agent, or choose its clients.
	return tlsconfig.Files{Certificate: f.TLSCert, Key: f.TLSKey, ClientCA: f.TLSClientCA, Check: secretfile.Refuse}.Server(log)
}

// warnOfPlainTokens warns that tokens can be read on the network, if the listener is reachable from
// other machines.
func warnOfPlainTokens(log *slog.Logger, address netip.AddrPort, url string) {
	if !address.Addr().Unmap().IsLoopback() {
		log.Warn("clients send their token and all their traffic unencrypted", "url", url,
			"remedy", "use --tls-cert and --tls-key; or listen on a loopback address behind a proxy that speaks TLS")
	}
}

// warnOfClients warns that everybody can use a listener without authentication, and names a remedy.
func warnOfClients(log *slog.Logger, address netip.AddrPort, url string) {
	who := "every local user and every container that shares this network"
	if !address.Addr().Unmap().IsLoopback() {
		who = "everybody who can reach this address; confined commands that have the network are refused"
	}
	log.Warn("anybody who can connect can run any command as the user of this agent: "+who, "url", url,
		"remedy", "(umask 077; head -c 32 /dev/urandom | base64 >TOKEN), then --ws-auth capability-token --ws-token-file TOKEN")
}
