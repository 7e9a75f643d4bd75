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
	TLSCert     string `env:"AGENT_TLS_CERT" name:"tls-cert" group:"auth" type:"path" placeholder:"FILE" help:"Certificate of this agent, with those of its intermediates (PEM): listen with TLS, at wss://IP:PORT. Read again when it changes."`
	TLSKey      string `env:"AGENT_TLS_KEY" name:"tls-key" group:"auth" type:"path" placeholder:"FILE" help:"Private key of --tls-cert (PEM). For confined commands never to see it, renew it in place, or in a folder of its own that no command may write."`
	TLSClientCA string `env:"AGENT_TLS_CLIENT_CA" name:"tls-client-ca" group:"auth" type:"path" placeholder:"FILE" help:"Authorities (PEM): only clients with a certificate of one of them are let in. It may stand instead of --ws-auth, or beside it."`
}

// check refuses TLS without a listener, or without one of its files. listen is the flag, "" if it
// was not given.
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
		return errors.New("--tls-cert and --tls-key need each other")
	case remote:
		return errors.New("--tls-cert has no meaning in remote mode, whose streams are encrypted end to end")
	case strings.HasPrefix(listen, "unix:") || strings.HasPrefix(listen, "stdio"):
		return errors.New("--tls-cert has no meaning without a port")
	case strings.HasPrefix(listen, "ws://"):
		return errors.New("--listen ws:// is without TLS: with --tls-cert it is wss://IP:PORT, or IP:PORT")
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

// config returns the configuration of the listener, nil without a certificate.
func (f *listenerTLS) config(log *slog.Logger) (*tls.Config, error) {
	if f.TLSCert == "" {
		return nil, nil
	}
	// A user who can change one of them can pose as the agent, or choose its clients.
	return tlsconfig.Files{Certificate: f.TLSCert, Key: f.TLSKey, ClientCA: f.TLSClientCA, Check: secretfile.Refuse}.Server(log)
}

// warnOfPlainTokens warns that tokens can be read on the network, if the listener is reachable from
// other machines.
func warnOfPlainTokens(log *slog.Logger, address netip.AddrPort, url string) {
	if !address.Addr().Unmap().IsLoopback() {
		log.Warn("clients send their token in clear text, and all that they do", "url", url,
			"remedy", "--tls-cert and --tls-key; or listen at a loopback address, with a proxy before it that speaks TLS")
	}
}

// warnOfClients warns of all who can use a listener without authentication, and names a remedy.
func warnOfClients(log *slog.Logger, address netip.AddrPort, url string) {
	who := "every local user, and every container that shares this network"
	if !address.Addr().Unmap().IsLoopback() {
		who = "everybody who reaches this address; confined commands with the network are refused"
	}
	log.Warn("whoever can connect is a client, and runs anything as the user of this agent: "+who, "url", url,
		"remedy", "(umask 077; head -c 32 /dev/urandom | base64 >TOKEN), then --ws-auth capability-token --ws-token-file TOKEN")
}
