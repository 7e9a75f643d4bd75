# needs: ssh-keygen
ssh-keygen -q -t ed25519 -N '' -C comment -f key
ssh-keygen -q -t ecdsa -N 'passphrase' -C comment -f other
ssh-keygen -y -f key | cut -d' ' -f1
ssh-keygen -p -P passphrase -N '' -f other
echo message >text
ssh-keygen -q -Y sign -f key -n file text 2>/dev/null
printf 'me %s\n' "$(cut -d' ' -f1,2 key.pub)" >allowed
ssh-keygen -Y verify -f allowed -I me -n file -s text.sig <text | cut -d' ' -f1-3
mkdir -p "$HOME/.ssh" && ssh-keygen -q -t ed25519 -N '' -f "$HOME/.ssh/id_ed25519" </dev/null
ssh-keygen -F host -f known || echo "status $?"
stat -c '%a %n' key key.pub other text.sig
