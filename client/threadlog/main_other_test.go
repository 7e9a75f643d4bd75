//go:build !unix

package threadlog_test

import "errors"

func full(string, string) error { return errors.ErrUnsupported }
