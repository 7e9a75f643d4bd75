package httpclient

import "fmt"

// ParamError says which parameter of a request is wrong and why. The agent answers with the error
// for invalid parameters, -32602. A ParamError never contains the content of an environment
// variable.
type ParamError struct{ text string }

func (e *ParamError) Error() string { return e.text }

func paramErrorf(format string, args ...any) error {
	return &ParamError{text: fmt.Sprintf(format, args...)}
}

// TransportError says that no usable answer came: no connection, no TLS, a timeout, an invalid
// answer, or too many redirects. The agent answers with -32603.
type TransportError struct {
	URL string // URL of the failed request, without credentials
	Err error
}

func (e *TransportError) Error() string { return fmt.Sprintf("http request for %s: %v", e.URL, e.Err) }

func (e *TransportError) Unwrap() error { return e.Err }

// BodyError says that the body of an answer ended early, broke its framing,
// timed out or was too large. The agent answers with -32603.
type BodyError struct{ Err error }

func (e *BodyError) Error() string { return fmt.Sprintf("reading http response body: %v", e.Err) }

func (e *BodyError) Unwrap() error { return e.Err }
