//go:build !unix

package threadlog

import "errors"

func full(string, string) error { return errors.ErrUnsupported }
