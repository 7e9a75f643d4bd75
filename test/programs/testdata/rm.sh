# needs: rm find
mkdir -p tree/{a,b,c}/{d,e}/{f,g}
for d in tree/*/*/*; do for i in $(seq 40); do : >"$d/$i"; done; done
find tree -name '1*' -delete
find tree -type f | wc -l
find tree/a -type f -exec rm {} +
find tree/a -depth -type d -empty -print -delete | sort
rm -rf tree/b
ln -s ../outside tree/link
mkdir outside && : >outside/kept
rm -rf tree
rm -rf link-to-nothing
rm none 2>&1 || echo "status $?"
rm outside 2>&1 || echo "status $?"
rmdir outside 2>&1 || echo "status $?"
mkdir -p p/q/r && rmdir -p p/q/r
: >read-only && chmod 400 read-only && rm -f read-only
: >open && exec 3<>open && rm open && echo still >&3 && cat /proc/self/fd/3 && exec 3>&-
ls outside
