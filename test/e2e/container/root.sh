# Makes root.tar in the folder $1: the root of the image without the agent. It has a shell and the
# tools of busybox, and the user $2.
set -eu
umask 022
mkdir "$1/root"
cd "$1/root"
mkdir -p bin dev etc home proc repo sys tmp usr var/tmp
chmod 1777 tmp var/tmp
/bin/busybox --list | (cd bin && xargs -n 1 ln -s busybox)
cp --remove-destination /bin/busybox bin/busybox
echo hidden >home/hidden
printf 'root:x:0:0::/:/bin/sh\nagent:x:%d:%d::/home:/bin/sh\n' "$2" "$2" >etc/passwd
printf 'root:x:0:\nagent:x:%d:\n' "$2" >etc/group
tar -cf ../root.tar --owner=0 --group=0 *
cd ..
rm -r root
