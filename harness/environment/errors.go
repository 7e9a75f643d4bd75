package environment

import (
	"errors"
	"fmt"

	"github.com/execagent/execagent/client"
)

// ErrClosed is the error of an [Environment] after the end of its [Set], and of a
// replaced one that is no longer held.
var ErrClosed = errors.New("environment closed")

// ErrNoise says that some of the three variables of a Noise environment are set, but not
// all of them.
var ErrNoise = errors.New("environment registry configuration error: Noise environment requires " +
	noiseRegistryURL + ", " + noiseEnvironmentID + ", and " + noiseAuthToken)

// AttemptError is the result of a failed attempt to connect, for all callers that
// waited for it. client.Retryable(Err) reports whether another attempt makes sense.
type AttemptError struct{ Err error }

func (e *AttemptError) Error() string {
	return "exec-server connection attempt failed: " + e.Err.Error()
}

func (e *AttemptError) Unwrap() error { return e.Err }

// UnavailableError says that an environment could not be provisioned.
type UnavailableError struct{ Err error }

func (e *UnavailableError) Error() string { return "environment unavailable: " + e.Err.Error() }

func (e *UnavailableError) Unwrap() error { return e.Err }

// ConflictError says that an id belongs to an environment registered in the other
// way, by [Set.Upsert] or by [Set.Provision].
type ConflictError struct{ ID string }

func (e *ConflictError) Error() string {
	return fmt.Sprintf("environment `%s` is already registered with a different provisioning mode", e.ID)
}

// UnknownError says that no environment has an id.
type UnknownError struct{ ID string }

func (e *UnknownError) Error() string { return fmt.Sprintf("unknown environment id `%s`", e.ID) }

// configErrorf returns an error in a configuration. Its text begins with
// "exec-server protocol error: ", as in the reference.
func configErrorf(format string, args ...any) error {
	return &client.ProtocolError{Reason: fmt.Sprintf(format, args...)}
}
