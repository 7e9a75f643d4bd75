package strictjson

// An Unmarshaler is a record that reads itself from an Object.
type Unmarshaler interface {
	UnmarshalObject(o *Object)
}

// Unmarshal reads one JSON object into v. Only white space may follow the object. The text is
// checked by the rules of [Members], and names are compared exactly.
func Unmarshal(text []byte, v Unmarshaler) error { return unmarshal(text, v, false) }

// UnmarshalRepeats is like [Unmarshal], but objects may repeat names. It is for files that other
// programs read too, and that nobody has to trust. [Object.Once] refuses a repeated name.
func UnmarshalRepeats(text []byte, v Unmarshaler) error { return unmarshal(text, v, true) }

func unmarshal(text []byte, v Unmarshaler, repeats bool) error {
	s := scanners.Get().(*scanner)
	defer s.recycle()
	*s = scanner{data: text, names: s.names[:0], repeats: repeats}
	s.space()
	start := s.pos
	if err := s.value(); err != nil {
		return err
	}
	if err := s.end(); err != nil {
		return err
	}
	o, err := ParseObject(text[start:])
	if err != nil {
		return err
	}
	v.UnmarshalObject(o)
	if err := o.Err(); err != nil {
		return err
	}
	return nil
}

// Members checks a text that should be one JSON object, and calls visit for each of its members as
// soon as the member is checked. name and value are slices of data; a name with escapes is a copy.
// isObject is false if the text is another JSON value. An error says which rule the text breaks,
// with line and column. After an error the caller must discard the members that visit has received.
func Members(data []byte, visit func(name, value []byte)) (isObject bool, err error) {
	s := scanners.Get().(*scanner)
	defer s.recycle()
	*s = scanner{data: data, values: 1, names: s.names[:0]}
	if s.space(); s.pos >= len(data) {
		return false, s.fail("end of input where a value was expected")
	}
	if data[s.pos] != '{' {
		s := scanner{data: data}
		if err := s.value(); err != nil {
			return false, err
		}
		return false, s.end()
	}
	if err := s.object(visit); err != nil {
		return true, err
	}
	return true, s.end()
}
