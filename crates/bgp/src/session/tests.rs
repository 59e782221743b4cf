mod agreement;
mod bed;
mod damage;
mod ends;
mod table;
