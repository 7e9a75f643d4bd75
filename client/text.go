package client

import (
	"errors"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/execagent/execagent/protocol"
)

// checkText refuses parameters with a string that is not UTF-8. JSON would replace its bytes, and
// the request would name another file or another program. The error has no value, because a value
// may be a secret.
func checkText(params any) error {
	at, ok := textIn(reflect.ValueOf(params))
	if ok {
		return nil
	}
	return errors.New(strings.TrimPrefix(at, ".") + " is not UTF-8: a request can have only text")
}

// textIn reports whether all strings in v are UTF-8, or names the first other string.
func textIn(v reflect.Value) (at string, ok bool) {
	switch v.Kind() {
	case reflect.String:
		return "", utf8.ValidString(v.String())
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return textIn(v.Elem())
		}
	case reflect.Slice:
		for i := 0; i < v.Len() && v.Type().Elem().Kind() != reflect.Uint8; i++ {
			if at, ok := textIn(v.Index(i)); !ok {
				return "[" + strconv.Itoa(i) + "]" + at, false
			}
		}
	case reflect.Map:
		for entries := v.MapRange(); entries.Next(); {
			if _, ok := textIn(entries.Key()); !ok {
				return ": a name", false
			}
			if at, ok := textIn(entries.Value()); !ok {
				return "." + entries.Key().String() + at, false
			}
		}
	case reflect.Struct:
		for i := 0; i < v.NumField() && v.Type() != uri; i++ {
			if at, ok := textIn(v.Field(i)); !ok {
				name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
				return "." + name + at, false
			}
		}
	}
	return "", true
}

// uri is the type of paths. A URI can have any bytes.
var uri = reflect.TypeFor[protocol.PathURI]()
