# needs: mktemp
stat -c %a "$(mktemp)"
stat -c %a "$(mktemp -d)"
stat -c %a "$(mktemp -p . name.XXXXXX)"
f=$(mktemp -u) && test ! -e "$f"
(umask 002 && : >group && mkdir group.d)
(umask 077 && : >private && mkdir private.d && mkfifo private.p)
(umask 0 && : >open && mkdir open.d && mkdir -m 751 exact.d)
umask 027 && sh -c ': >inherited; umask 7; : >own; (umask 70; : >below)'; : >after
stat -c '%a %n' group group.d private private.d private.p open open.d exact.d inherited own below after
rm -rf tmp/tmp.* name.*
