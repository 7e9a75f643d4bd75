package transport_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"

	"github.com/execagent/execagent/transport"
)

// A listener on a loopback address, and a client that knows its token.
func Example() {
	digest := sha256.Sum256([]byte("secret"))
	auth, err := transport.AuthOptions{Mode: "capability-token", TokenSHA256: hex.EncodeToString(digest[:])}.Authenticator()
	if err != nil {
		fmt.Println(err)
		return
	}
	listener, err := transport.Listen(transport.Config{URL: "ws://127.0.0.1:0", Auth: auth})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer listener.Close()
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		message, _ := conn.Read()
		_ = conn.Write(message)
	}()
	conn, err := transport.Dial(context.Background(), listener.URL(), transport.DialConfig{
		Header: http.Header{"Authorization": {"Bearer secret"}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	_ = conn.Write([]byte(`{"method":"echo"}`))
	message, err := conn.Read()
	fmt.Println(string(message), err)
	// Output: {"method":"echo"} <nil>
}
