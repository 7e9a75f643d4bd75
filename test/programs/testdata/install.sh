# needs: install
seq 5 >file
install -D -m 751 file usr/bin/program
install -d -m 700 private/a
install -m 4755 file suid 2>/dev/null || install -m 755 file suid
rm suid
install -b -m 644 file usr/bin/program
install -C file usr/bin/program
install -p -t usr/bin file
install none usr 2>&1 || echo "status $?"
